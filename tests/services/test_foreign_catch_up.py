"""A follower that subscribes from the beginning gets everything that a real legacy server sends."""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.worker import WorkerFactory
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.dialects import LEGACY, Side
from tests.services.test_serve import ConnectionLostReason, Transport
from tests.services.world import RecordingLog, manual_clock
from tests.wire.recordings import genuine_lines


class CountingHandler(Handler):
    """Counts rows."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()

    async def on_rows(self, batch: Batch) -> None:
        """Count the rows."""
        self.rows[batch.stream] += len(batch.rows)


class CatchingUpWithARealServer(SynchronousTestCase):
    def test_delivers_streams_that_share_a_sequence_unordered(self) -> None:
        clock, log, handler = manual_clock(), RecordingLog(), CountingHandler()
        scheduler = TwistedScheduler(clock)
        follower = Follower(
            scheduler,
            Catalogue(SYNAPSE_STREAMS),
            MemoryStore(scheduler),
            Delivery(scheduler, [Subscription(handler)], log),
            log,
            earliest=True,
            foreign=True,
        )
        factory = WorkerFactory(scheduler, follower, "test", None, LEGACY, log.info)
        peer: Any = factory.buildProtocol(None)
        peer.makeConnection(Transport())
        self.addCleanup(peer.connectionLost, ConnectionLostReason)
        sent: Counter[str] = Counter()
        positions: dict[str, int] = {}
        for side, line in genuine_lines("1.11.1", "catchup-from0"):
            if side is not Side.SERVER:
                continue
            verb, *words = line.decode().split(" ", 2)
            if verb == "RDATA":
                sent[words[0]] += 1
            elif verb == "POSITION":
                positions[words[0]] = int(words[1])
            peer.dataReceived(line + b"\n")
        self.assertGreater(sent["device_lists"], 10)
        self.assertEqual(handler.rows, sent)
        own = {stream: token for (stream, _), token in follower.positions.items()}
        for stream, position in positions.items():  # it goes on after that
            self.assertGreaterEqual(own[stream], position, stream)
