"""The scheduler on test clocks."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler


class Scheduling(SynchronousTestCase):
    """Time stands still but for ``advance``."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.scheduler = TwistedScheduler(self.clock)

    def test_tells_time_and_calls_later(self) -> None:
        calls: list[float] = []
        self.clock.advance(3)
        self.scheduler.callLater(2, lambda: calls.append(self.scheduler.seconds()))
        cancelled = self.scheduler.callLater(1, calls.append, -1.0)
        self.assertTrue(cancelled.active())
        cancelled.cancel()
        self.clock.advance(2)
        self.assertEqual(calls, [5.0])

    def test_random_numbers_come_from_the_given_source(self) -> None:
        scheduler = TwistedScheduler(self.clock, iter([0.25, 0.75]).__next__)
        self.assertEqual([scheduler.random(), scheduler.random()], [0.25, 0.75])

    def test_sleep_resolves_after_the_given_time(self) -> None:
        async def nap() -> str:
            await self.scheduler.sleep(1.5)
            return "awake"

        napping = Deferred.fromCoroutine(nap())
        self.clock.advance(1.4)
        self.assertNoResult(napping)
        self.clock.advance(0.1)
        self.assertEqual(self.successResultOf(napping), "awake")

    def test_cancelled_sleep_leaves_no_timer(self) -> None:
        napping = self.scheduler.sleep(1)
        napping.addErrback(lambda _: None)
        napping.cancel()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_spawn_runs_until_it_waits_and_then_on(self) -> None:
        said: list[str] = []
        promise = self.scheduler.promise()

        async def work() -> None:
            said.append("waiting")
            said.append(await promise)

        self.scheduler.spawn("work", work())
        self.assertEqual(said, ["waiting"])
        promise.callback("done")
        self.assertEqual(said, ["waiting", "done"])

    def test_spawn_logs_an_error_under_its_name(self) -> None:
        async def work() -> None:
            raise ValueError("no")

        self.scheduler.spawn("counting sheep", work())
        [failure] = self.flushLoggedErrors(ValueError)
        self.assertEqual(str(failure.value), "no")

    def test_stop_ends_what_sleeps(self) -> None:
        async def forever() -> None:
            while True:
                await self.scheduler.sleep(60)

        self.scheduler.spawn("forever", forever())
        self.scheduler.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_runs_on_a_memory_reactor(self) -> None:
        clock = MemoryReactorClock()
        napping = TwistedScheduler(clock).sleep(1)
        clock.advance(1)
        self.assertIsNone(self.successResultOf(napping))
