"""What is committed and not here yet, as far as that matters to cache entries."""

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
from tests.tools.audited import Base


class At:
    """Positions of a follower, of one view.

    :ivar reached: by stream and writer
    """

    def __init__(self, all_as_one: bool, **reached: Token) -> None:
        self._linear = all_as_one
        self._reached = reached

    def keys(self, stream: str, writer: str | None) -> Sequence[PositionKey]:
        """The one position that counts."""
        if stream != "caches":
            raise NotFollowed(stream=stream)
        return [(stream, LINEAR if self._linear else writer or "")]

    def position(self, key: PositionKey) -> Token:
        """Where it stands."""
        return self._reached.get(key[1] or "linear", 0)

    def why_below(self, key: PositionKey, token: Token) -> str:
        """Why it stands there."""
        return "a test says so"


class Settlements(Base):
    """What followers have to wait for."""

    def setUp(self) -> None:
        super().setUp()
        for _ in range(3):
            self.world.by_other(self.world.stale_row(("x",)))
        self.world.by_master(self.world.stale_row(("x",)))
        self.world.clock.pump([1, 1])  # looked at, and on record
        seen = done(self.world.store.observe([CACHES]))["caches"]
        self.assertEqual((seen.recorded, seen.writers["other"].position), (4, 4))

    def settlement(self, own: AppliedPositions, has_in_memory_streams: bool = False) -> Settlement:
        world = self.world
        waiting = WaitFor(world.catalogue, own, PositionWaiters(world.scheduler))
        return Settlement(
            world.clock, world.catalogue, world.store, own, waiting, has_in_memory_streams
        )

    def last(self, own: AppliedPositions) -> dict[str, Token]:
        found = done(self.settlement(own).observe(["caches", "events", "nosuch"]))
        self.assertEqual(list(found.seen), ["caches"])
        return {writer: token for (_, writer), token in found.last.items()}

    def test_where_it_may_be_behind(self) -> None:
        self.assertEqual(self.last(At(False, other=4, master=4)), {})
        self.assertEqual(self.last(At(False, other=2, master=4)), {"other": 3, "master": 4})
        self.assertEqual(self.last(At(False, other=4, master=1)), {"other": 3, "master": 4})
        self.assertEqual(self.last(At(True, linear=4)), {})
        self.assertEqual(self.last(At(True, linear=3)), {"master": 4})
        self.world.by_other(self.world.stale_row(("x",)))
        self.assertEqual(self.last(At(True, linear=4)), {"other": 5})
        self.assertEqual(self.last(At(False, other=5, master=4)), {"other": 5})

    def test_too_far_behind(self) -> None:
        self.addCleanup(setattr, settlement, "MOST_TOKENS", settlement.MOST_TOKENS)
        settlement.MOST_TOKENS = 2
        self.last(At(True, linear=2))
        self.assertRaises(FarBehind, self.last, At(True, linear=1))

    def test_streams_in_the_memory_of_another_process(self) -> None:
        catalogue = self.world.catalogue = Catalogue((CACHES, replace(EVENTS, in_memory=True)))
        own = MasterPositions(self.world.announcer, self.world.writer)
        self.assertIn("events", catalogue)
        done(self.settlement(own, has_in_memory_streams=True).observe(["events"]))
        with self.assertRaises(InMasterMemory):
            done(self.settlement(own).observe(["events"]))
