"""A recording is replayed at its speed; followers get every row, no faster than they read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import TestCase

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase as TrialCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.worker import WorkerFactory
from synrepl.cli.tap.replay import MAX_CLIENTS, ReplayFactory
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Generation
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.tools.judge.judge import Recorded
from synrepl.tools.tap.replay import Burst, ReplayPlan, lines_for_client, replay
from synrepl.wire.codec import parse_line
from synrepl.wire.commands import Rdata
from synrepl.wire.dialects import (
    LEGACY,
    MODERN,
    TRANSITIONAL,
    TRANSITIONAL_OR_MODERN,
    Dialect,
    Side,
)
from tests.services.test_serve import ConnectionLostReason, Transport
from tests.services.world import RecordingLog
from tests.wire.recordings import CAPTURES, genuine_lines


class ReplaySpeed(TestCase):
    """The lines that are sent, and when."""

    def setUp(self) -> None:
        self.clock: Any = Clock()
        self.clock.advance(1_000)
        self.scheduler = TwistedScheduler(self.clock)
        self.sent: list[tuple[float, bytes]] = []
        self.read = 0

    def recording(self, *lines: tuple[int, bytes]) -> Iterator[Recorded]:
        for at, line in lines:
            self.read += 1
            yield Recorded(self.read, 5_000_000 + at, Side.SERVER, line)

    async def take(self, burst: Burst) -> bool:
        data = b"".join(line + b"\n" for line in burst.lines)
        self.sent.append((self.clock.seconds() - 1_000, data))
        return True

    def play(self, recording: Iterator[Recorded], speed: float) -> Deferred[int]:
        coroutine = replay(self.scheduler, lines_for_client(recording, None), speed, self.take)
        return Deferred.fromCoroutine(coroutine)

    script = (
        (0, b"SERVER x"),
        (100, b"POSITION a 1"),
        (100, b"POSITION b 1"),
        (1_100, b"RDATA a 2 []"),
        (600, b"RDATA a 3 []"),  # the recorder's clock was set back
        (5_100, b"PING 5"),
        (9_100, b"RDATA a 4 []"),
    )

    def test_plays_at_the_recorded_speed_or_twice_as_fast(self) -> None:
        for speed in (1.0, 2.0):
            self.setUp()
            done = self.play(self.recording(*self.script), speed)
            for _ in range(100):
                self.clock.advance(0.125)
            self.assertEqual(
                self.sent,
                [
                    (0, b"POSITION a 1\nPOSITION b 1\n"),
                    (1 / speed, b"RDATA a 2 []\nRDATA a 3 []\n"),
                    (9 / speed, b"RDATA a 4 []\n"),
                ],
            )
            self.assertEqual(done.result, 5)

    def test_plays_at_once_with_speed_0(self) -> None:
        done = self.play(self.recording(*self.script), 0.0)
        self.assertEqual([(at, data.count(b"\n")) for at, data in self.sent], [(0, 5)])
        self.assertEqual(done.result, 5)

    def test_reads_no_more_than_the_client_takes(self) -> None:
        room: Deferred[bool] = Deferred()

        async def take(burst: Burst) -> bool:
            await self.take(burst)
            return await room

        many = self.recording(*((n, b"RDATA a 2 []" + b" " * 1_000) for n in range(10_000)))
        coroutine = replay(self.scheduler, lines_for_client(many, None), 0.0, take)
        done = Deferred.fromCoroutine(coroutine)
        self.assertEqual(len(self.sent), 1)
        self.assertLess(self.read, 70)
        room.callback(False)
        self.assertLess(self.read, 70)
        self.assertEqual(done.result, self.sent[0][1].count(b"\n"))

    def test_plays_one_connection_of_several_and_all_of_redis(self) -> None:
        lines = [
            Recorded(1, 0, Side.SERVER, b"RDATA a 1 []", 1),
            Recorded(2, 0, Side.SERVER, b"RDATA a 2 []", 2),
            Recorded(3, 0, Side.CLIENT, b"RDATA a 3 []", 2),
            Recorded(4, 0, None, b"open", 2),
            Recorded(5, 0, None, b"RDATA a m 6 []", None, "x"),
            Recorded(6, 0, None, b"LOCK_RELEASED []", None, "x"),
        ]
        part = lines_for_client(lines, 2)
        Deferred.fromCoroutine(replay(self.scheduler, part, 0.0, self.take))
        self.assertEqual([data for _, data in self.sent], [b"RDATA a 2 []\nRDATA a m 6 []\n"])


class ReplayClients(TestCase):
    """The lines that each client gets."""

    def setUp(self) -> None:
        self.clock: Any = Clock()
        path = CAPTURES / "1.43.0" / "live.jsonl.gz"
        self.factory = ReplayFactory(self.clock, ReplayPlan(path, "localhost:1", MODERN, None, 1.0))

    def client(self) -> tuple[Any, Transport]:
        peer, transport = self.factory.buildProtocol(None), Transport()
        assert peer is not None
        peer.makeConnection(transport)
        return peer, transport

    def test_plays_only_after_replicate_and_only_once(self) -> None:
        peer, transport = self.client()
        peer.dataReceived(b"NAME x\nFEDERATION_ACK x 1\n")
        self.clock.advance(0)
        self.assertEqual(transport.value(), b"SERVER localhost:1\nPING 0\n")
        transport.clear()
        peer.dataReceived(b"REPLICATE\nREPLICATE\n")
        self.assertEqual(transport.value().count(b"POSITION"), 16)
        transport.clear()
        self.clock.advance(1.0)
        self.assertIn(b"RDATA", transport.value())

    def test_waits_for_a_client_that_does_not_read(self) -> None:
        path = CAPTURES / "1.43.0" / "live.jsonl.gz"
        at_once = ReplayPlan(path, "localhost:1", MODERN, None, 0.0)
        self.factory = ReplayFactory(self.clock, at_once)
        peer, transport = self.client()
        transport.clear()
        peer.pauseProducing()
        peer.dataReceived(b"REPLICATE\n")
        self.assertEqual((transport.value(), peer.queued_lines), (b"", 0))
        peer.resumeProducing()
        self.assertEqual(transport.value().count(b"\n"), 2_341)

    def test_a_disconnected_client_leaves_no_timer(self) -> None:
        peer, _ = self.client()
        peer.dataReceived(b"REPLICATE\n")
        self.assertTrue(self.clock.getDelayedCalls())
        peer.connectionLost(ConnectionLostReason)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_refuses_too_many_clients(self) -> None:
        peers = [self.client()[0] for _ in range(MAX_CLIENTS)]
        self.assertIsNone(self.factory.buildProtocol(None))
        peers[0].connectionLost(ConnectionLostReason)
        self.client()


class RowCollector(Handler):
    """Collects rows as JSON, by stream, until there are enough."""

    codecs: ClassVar[dict[str, RowCodec]] = {s.name: RowCodec(s) for s in SYNAPSE_STREAMS}

    def __init__(self, rows: Generation, enough: int) -> None:
        self.found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        self.enough: Deferred[None] = Deferred()
        self._left = enough
        self._rows = rows

    async def on_rows(self, batch: Batch) -> None:
        encode = self.codecs[batch.stream].encoder(self._rows)
        for fact in batch.facts:
            for row in fact.rows:
                self.found[batch.stream].append((fact.token, json.loads(encode(row))))
                self._left -= 1
        if self._left == 0:
            self.enough.callback(None)


class FollowerOfReplay(TrialCase):
    """A follower of a replayed real server, over TCP."""

    timeout = 60

    def listen(self, version: str, name: str, dialect: Dialect, speed: float = 0.0) -> int:
        path = CAPTURES / version / f"{name}.jsonl.gz"
        untyped_reactor: Any = reactor
        plan = ReplayPlan(path, "localhost:1", dialect, None, speed)
        port = untyped_reactor.listenTCP(
            0, ReplayFactory(untyped_reactor, plan), interface="127.0.0.1"
        )
        self.addCleanup(port.stopListening)
        number: int = port.getHost().port
        return number

    async def check_every_row(
        self,
        version: str,
        dialect: Dialect,
        rows: Generation,
        client_dialect: Dialect | None = None,
    ) -> None:
        """A follower gets every row.

        :param client_dialect: the dialect of the follower; None for the server's
        """
        expected = recorded_rows(version, dialect)
        self.assertGreater(sum(map(len, expected.values())), 900)
        port = self.listen(version, "live", dialect)
        untyped_reactor: Any = reactor
        scheduler = TwistedScheduler(untyped_reactor)
        log, handler = RecordingLog(), RowCollector(rows, sum(map(len, expected.values())))
        follower = Follower(
            scheduler,
            Catalogue(SYNAPSE_STREAMS),
            MemoryStore(scheduler),
            Delivery(scheduler, [Subscription(handler)], log),
            log,
            earliest=False,
            foreign=True,
        )
        factory = WorkerFactory(
            scheduler, follower, "test", "localhost:1", client_dialect or dialect, log.info
        )
        connector = untyped_reactor.connectTCP("127.0.0.1", port, factory)
        self.addCleanup(connector.disconnect)
        self.addCleanup(factory.stop)
        await handler.enough
        self.assertEqual(dict(handler.found), expected)
        self.assertEqual([text for level, text in log.lines if level == "warn"], [])

    async def test_gets_every_row_in_the_legacy_dialect(self) -> None:
        await self.check_every_row("1.11.1", LEGACY, Generation.LEGACY)

    async def test_gets_every_row_of_the_oldest_server(self) -> None:
        await self.check_every_row("1.0.0", LEGACY, Generation.OLDEST)

    async def test_detects_a_newer_dialect_from_the_first_position(self) -> None:
        for version, dialect, rows in (
            ("1.20.1", TRANSITIONAL, Generation.TRANSITIONAL),
            ("1.43.0", MODERN, Generation.MODERN),
        ):
            await self.check_every_row(version, dialect, rows, TRANSITIONAL_OR_MODERN)

    async def test_gets_every_row_in_the_modern_dialect(self) -> None:
        await self.check_every_row("1.43.0", MODERN, Generation.MODERN)

    async def test_refuses_a_client_of_another_dialect(self) -> None:
        port = self.listen("1.43.0", "live", MODERN)
        client = RecordingClient()
        untyped_reactor: Any = reactor
        await connectProtocol(TCP4ClientEndpoint(untyped_reactor, "127.0.0.1", port), client)
        client.write(b"REPLICATE ALL NOW\n")
        await client.gone
        self.assertIn(b"ERROR failed to parse REPLICATE: the modern dialect has", client.data)


class RecordingClient(Protocol):
    """A client that records the received data."""

    transport: Any

    def __init__(self) -> None:
        self.data = b""
        self.gone: Deferred[None] = Deferred()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        self.data += data

    def connectionLost(self, reason: object = None) -> None:
        self.gone.callback(None)


def recorded_rows(version: str, dialect: Dialect) -> dict[str, list[tuple[int, Any]]]:
    """Token and row of every RDATA of a recording, by stream; rows in a batch have its token."""
    found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    open_batches: dict[str, list[Any]] = defaultdict(list)
    for side, line in genuine_lines(version, "live"):
        command = parse_line(line, dialect, side)
        if isinstance(command, Rdata):
            rows = open_batches[command.stream]
            rows.append(json.loads(command.row))
            if command.token is not None:
                found[command.stream] += [(command.token, row) for row in rows]
                rows.clear()
    return dict(found)
