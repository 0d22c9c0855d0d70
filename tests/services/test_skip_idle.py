"""An idle writer that announces itself advances with the others, and skips no fact of its own."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.writing.periodic import SKIP_IDLE_EVERY_S, skip_idle
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.memory.lease import MemoryLease
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import Draft
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from tests.services.manual_pubsub import NOTES, ManualPubSub, RecordingMoves
from tests.services.world import RecordingLog, done


class SkippingIdleWriters(TestCase):
    def setUp(self) -> None:
        self.pubsub, log = ManualPubSub(), RecordingLog()
        self.store: MemoryStore = self.pubsub.store
        self.leases: list[MemoryLease] = []
        open_writer = self.store.open_writer

        async def recorded_lease(writer: str, streams: Sequence[Stream]) -> MemoryLease:
            lease = await open_writer(writer, streams)
            self.leases.append(lease)
            return lease

        self.store.open_writer = recorded_lease  # type: ignore[method-assign]
        self.moves = RecordingMoves()
        scheduler = self.pubsub.scheduler
        self.addCleanup(scheduler.stop)
        self.writer = StreamWriter(
            scheduler, self.store, "one", [NOTES], OwnWriter(self.moves), log
        )
        done(self.writer.start())
        scheduler.spawn("skip idle", skip_idle(scheduler, self.writer, log))
        self.other = done(self.store.open_writer("other", [NOTES]))

    def rows(self) -> Sequence[Sequence[Row]]:
        return [[RowCodec(NOTES).decode(b'["x"]')]]

    def append(self, lease: MemoryLease) -> None:
        """Commit a fact in another process."""
        done(lease.append(NOTES, [Draft(self.rows())], 0))

    def settled(self, upto: Token) -> None:
        """Record as a master that everything is settled, and let the next check run."""
        done(self.store.record_positions(NOTES, upto, {"one": upto}))
        self.pubsub.clock.advance(SKIP_IDLE_EVERY_S)

    def test_advances_to_the_recorded_position(self) -> None:
        for _ in range(3):
            self.append(self.other)
        self.settled(2)
        self.assertEqual(self.moves.kept, [(0, 2, [])])
        self.settled(2)
        self.assertEqual(self.moves.kept, [(0, 2, [])])
        done(self.writer.append(NOTES, self.rows()))
        self.assertEqual(self.moves.kept[1:], [(2, 4, [4])])

    def test_follows_a_successor_that_it_does_not_know(self) -> None:
        self.leases[0].kill()
        self.append(done(self.store.open_writer("one", [NOTES])))
        self.settled(1)
        self.assertTrue(self.writer.is_open)
        self.assertEqual(self.moves.kept, [])
