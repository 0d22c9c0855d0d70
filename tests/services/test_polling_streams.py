"""When the announcer looks at a stream again."""

from __future__ import annotations

from unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.storage.store import Draft
from tests.services.world import MasterWorld, done


class LookingAgain(TestCase):
    """A stream whose linear position is held up by a reservation."""

    def setUp(self) -> None:
        self.world = MasterWorld()
        self.jobs = self.world.catalogue["jobs"]
        done(self.world.start())
        self.addCleanup(self.world.stop)
        slow = done(self.world.store.open_writer("slow", [self.jobs]))
        self.lease = done(self.world.store.open_writer("other", [self.jobs]))
        done(slow.reserve(self.jobs, 1, 0))
        # Own facts above it: the hole has been looked at more than once, so looks have become rare.
        done(self.world.intake.append("jobs", b"[[7]]"))
        self.world.clock.pump([0.001] * 400)

    def append(self) -> None:
        """Another process writes a fact, and its commit wakes the announcer."""
        row = self.jobs.kinds[""](7, None, None)
        done(self.lease.append(self.jobs, [Draft([[row]])], 0))
        self.world.announcer.wake("jobs")

    @property
    def announced(self) -> Token:
        """The announced position of the other writer."""
        return self.world.announcer.states["jobs"].positions.get("other", 0)

    def test_a_commit_is_announced_at_once_also_behind_a_hole(self) -> None:
        self.append()
        self.assertEqual(self.announced, 3)

    def test_commits_in_quick_succession_share_a_look(self) -> None:
        for _ in range(3):
            self.append()
        self.assertEqual(self.announced, 3)
        self.world.clock.advance(DEFAULT_SIZES.coalesce_s)
        self.assertEqual(self.announced, 5)
