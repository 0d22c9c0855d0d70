"""How often a process that starts looks for its database."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.retry import RandomSource
from synrepl.daemon.database_wait import DatabaseWait
from synrepl.driver.connection import DatabaseRefused
from synrepl.storage.store import DatabaseAway
from tests.services.world import RecordingLog, manual_clock


class DatabaseWaitRetries(SynchronousTestCase):
    """Attempts at a step of the start, on a test's clock."""

    def setUp(self) -> None:
        self.clock = manual_clock()
        self.attempts: list[float] = []
        self.reasons: list[str] = []

    def run_step(self, failures: int, random: RandomSource) -> Deferred[str]:
        scheduler = TwistedScheduler(self.clock, random)
        self.addCleanup(scheduler.stop)
        start = self.clock.seconds()

        async def step() -> str:
            self.attempts.append(round(self.clock.seconds() - start, 3))
            if len(self.attempts) <= failures:
                raise DatabaseAway(where="db", reason="refused")
            return "done"

        wait = DatabaseWait(scheduler, self.reasons.append, RecordingLog())
        return Deferred.fromCoroutine(wait.until_done(step))

    def run_out(self) -> None:
        """Let time pass from one timer to the next."""
        while timers := self.clock.getDelayedCalls():
            self.clock.advance(max(0.0, timers[0].getTime() - self.clock.seconds()))

    def test_backs_off_up_to_five_seconds(self) -> None:
        waiting = self.run_step(7, lambda: 0.0)
        self.run_out()
        self.assertEqual(self.successResultOf(waiting), "done")
        self.assertEqual(self.attempts, [0.0, 0.2, 0.6, 1.4, 3.0, 6.2, 11.2, 16.2])
        self.assertEqual((len(self.reasons), self.reasons[-1]), (8, "starting"))

    def test_jitter_spreads_the_retries_of_several_processes(self) -> None:
        drawn = iter([0.0, 0.5, 0.25, 0.75])
        waiting = self.run_step(4, lambda: next(drawn))
        self.run_out()
        self.assertEqual(self.successResultOf(waiting), "done")
        self.assertEqual(self.attempts, [0.0, 0.2, 0.5, 1.2, 2.2])

    def test_does_not_wait_for_a_database_that_refuses(self) -> None:
        scheduler = TwistedScheduler(self.clock)
        self.addCleanup(scheduler.stop)

        async def step() -> None:
            raise DatabaseRefused(where="db", reason="no such user")

        wait = DatabaseWait(scheduler, self.reasons.append, RecordingLog())
        self.failureResultOf(Deferred.fromCoroutine(wait.until_done(step)), DatabaseRefused)
        self.assertEqual(self.reasons, [])
