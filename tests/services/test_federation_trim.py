"""Trimming of the federation stream by acknowledgements."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from synrepl.core.tokens import Range
from synrepl.services.serving.federation_acks import FederationAcks
from synrepl.services.serving.federation_trim import (
    FederationTrim,
    federation_status,
    store_trimmer,
)
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.storage.store import TrimResult
from synrepl.streams.synapse.federation import FEDERATION, FederationRow
from tests.services.world import MasterWorld, RecordingLog, done, started


class TrimmingAcknowledgedFacts(SynchronousTestCase):
    """A federation stream with a maximum number of rows."""

    def begin(self, max_rows: int = 100_000) -> MasterWorld:
        """A world with two senders."""
        world = started(max_rows)
        self.addCleanup(world.stop)
        self.log = RecordingLog()
        self.acks: FederationAcks[str] = FederationAcks(
            ["one", "two"], lambda: world.announcer.states["federation"].linear
        )
        trim = store_trimmer(world.store, FEDERATION)
        self.trim = FederationTrim(world.scheduler, self.acks, trim, self.log)
        return world

    def append(self, world: MasterWorld, count: int) -> None:
        """Append facts."""
        facts = [[FederationRow("k", {"n": n})] for n in range(count)]
        done(world.writer.append(FEDERATION, facts))
        world.clock.advance(0)

    def acknowledge(self, world: MasterWorld, sender: str, token: int) -> None:
        """A sender acknowledges."""
        self.acks.acknowledge("connection", sender, token, sender)
        for _ in range(10):
            world.clock.advance(0)

    def trimmed(self, world: MasterWorld) -> int:
        """The last trimmed token."""
        return done(world.store.observe([FEDERATION]))[FEDERATION.name].trimmed

    def kept(self, world: MasterWorld) -> int:
        """The number of facts that are left."""
        trimmed = self.trimmed(world)
        page = done(world.store.page(FEDERATION, Range(trimmed, 100_000), None, 100_000))
        return len(page.facts)

    def test_trims_up_to_the_sender_that_is_furthest_behind(self) -> None:
        world = self.begin()
        self.append(world, 10)
        self.acknowledge(world, "one", 7)
        self.assertEqual(self.kept(world), 10)
        self.assertEqual((self.trim.trimming.rows, self.trim.trimming.held_by), (0, "two"))
        self.acknowledge(world, "two", 4)
        self.assertEqual(self.kept(world), 6)
        self.acknowledge(world, "two", 9)
        self.assertEqual(self.kept(world), 3)
        self.assertEqual((self.trim.trimming.rows, self.trim.trimming.held_by), (7, "one"))

    def test_trims_many_rows_in_several_steps(self) -> None:
        world = self.begin()
        self.append(world, 2 * DEFAULT_SIZES.trim_rows + 5)
        for sender in ("one", "two"):
            self.acknowledge(world, sender, 2 * DEFAULT_SIZES.trim_rows + 3)
        self.assertEqual(self.kept(world), 2)

    def test_bounds_memory_if_a_sender_never_acknowledges(self) -> None:
        world = self.begin(20)
        self.acknowledge(world, "one", 0)
        for _ in range(10):
            self.append(world, 10)
        self.assertLessEqual(self.kept(world), 20)
        gone = self.trimmed(world)
        self.assertEqual(
            federation_status(self.acks, gone),
            {
                "senders": {"one": 0, "two": None},
                "floor": None,
                "held_by": "two",
                "lost_upto": gone,
            },
        )

    def test_retries_with_the_next_acknowledgement(self) -> None:
        world = self.begin()
        self.append(world, 10)
        self.acknowledge(world, "one", 10)
        world.store.away = True
        self.acknowledge(world, "two", 5)
        self.assertIn("cannot trim federation", self.log.lines[0][1])
        world.store.away = False
        self.assertEqual(self.kept(world), 10)
        self.acknowledge(world, "two", 6)
        self.assertEqual(self.kept(world), 4)

    def test_does_nothing_for_a_repeated_token(self) -> None:
        world = self.begin()
        self.append(world, 3)
        asked: list[int] = []

        async def trim(upto: int, limit: int) -> TrimResult:
            asked.append(upto)
            return TrimResult(upto, 0, None)

        acks: FederationAcks[str] = FederationAcks(["one"], lambda: 3)
        FederationTrim(world.scheduler, acks, trim, self.log)
        for token in (2, 2, 1, 2, 3):
            acks.acknowledge("c", "one", token, "c")
            world.clock.advance(0)
        self.assertEqual(asked, [2, 3])
