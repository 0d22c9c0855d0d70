"""The committed positions that an audit has to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synrepl.core.tokens import Token
from synrepl.services.position_waiters import PositionWaiters
from synrepl.services.sources import LINEAR
from synrepl.services.sources import Key as PositionKey
from synrepl.services.waiting.applied_positions import (
    AppliedPositions,
    MasterPositions,
    NotFollowed,
)
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.events import EVENTS
from synrepl.tools.audit import settlement
from synrepl.tools.audit.settlement import FarBehind, InMasterMemory, Settlement
from tests.services.world import done
from tests.tools.audit_fixtures import AuditCase


class FixedPositions:
    """Fixed applied positions of a follower.

    :param is_linear: whether one position stands for all writers
    :param reached: positions by writer, or ``linear``
    """

    def __init__(self, is_linear: bool, **reached: Token) -> None:
        self._is_linear = is_linear
        self._reached = reached

    def keys(self, stream: str, writer: str | None) -> Sequence[PositionKey]:
        """The key of the position that covers the writer."""
        if stream != "caches":
            raise NotFollowed(stream=stream)
        return [(stream, LINEAR if self._is_linear else writer or "")]

    def position(self, key: PositionKey) -> Token:
        """The fixed position."""
        return self._reached.get(key[1] or "linear", 0)

    def why_below(self, key: PositionKey, token: Token) -> str:
        """A fixed reason."""
        return "a test says so"


class SettlementOfFollowers(AuditCase):
    """The positions that followers have to wait for."""

    def setUp(self) -> None:
        super().setUp()
        for _ in range(3):
            self.process.commit_as_other(self.process.invalidation(("x",)))
        self.process.commit_as_master(self.process.invalidation(("x",)))
        self.process.clock.pump([1, 1])  # polled and recorded
        seen = done(self.process.store.observe([CACHES]))["caches"]
        self.assertEqual((seen.recorded, seen.writers["other"].position), (4, 4))

    def settlement(self, own: AppliedPositions, has_in_memory_streams: bool = False) -> Settlement:
        process = self.process
        waiting = WaitFor(process.catalogue, own, PositionWaiters(process.scheduler))
        return Settlement(
            process.clock, process.catalogue, process.store, own, waiting, has_in_memory_streams
        )

    def last(self, own: AppliedPositions) -> dict[str, Token]:
        found = done(self.settlement(own).observe(["caches", "events", "nosuch"]))
        self.assertEqual(list(found.seen), ["caches"])
        return {writer: token for (_, writer), token in found.last.items()}

    def test_waits_for_writers_that_may_be_behind(self) -> None:
        self.assertEqual(self.last(FixedPositions(False, other=4, master=4)), {})
        self.assertEqual(
            self.last(FixedPositions(False, other=2, master=4)), {"other": 3, "master": 4}
        )
        self.assertEqual(
            self.last(FixedPositions(False, other=4, master=1)), {"other": 3, "master": 4}
        )
        self.assertEqual(self.last(FixedPositions(True, linear=4)), {})
        self.assertEqual(self.last(FixedPositions(True, linear=3)), {"master": 4})
        self.process.commit_as_other(self.process.invalidation(("x",)))
        self.assertEqual(self.last(FixedPositions(True, linear=4)), {"other": 5})
        self.assertEqual(self.last(FixedPositions(False, other=5, master=4)), {"other": 5})

    def test_refuses_to_wait_if_too_far_behind(self) -> None:
        self.addCleanup(setattr, settlement, "MOST_TOKENS", settlement.MOST_TOKENS)
        settlement.MOST_TOKENS = 2
        self.last(FixedPositions(True, linear=2))
        self.assertRaises(FarBehind, self.last, FixedPositions(True, linear=1))

    def test_refuses_in_memory_streams_of_another_process(self) -> None:
        catalogue = self.process.catalogue = Catalogue((CACHES, replace(EVENTS, in_memory=True)))
        own = MasterPositions(self.process.announcer, self.process.writer)
        self.assertIn("events", catalogue)
        done(self.settlement(own, has_in_memory_streams=True).observe(["events"]))
        with self.assertRaises(InMasterMemory):
            done(self.settlement(own).observe(["events"]))
