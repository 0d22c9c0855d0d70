"""Work on several items at once, and work that goes on without who asked for it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.concurrent import map_concurrently, uncancelled


class OddError(Exception):
    """An error of the tests."""


class KeptCoroutines(TwistedScheduler):
    """Starts coroutines, and keeps them.

    :ivar kept: those that wait
    """

    def __init__(self) -> None:
        super().__init__(Clock())
        self.kept: list[Coroutine[Any, Any, object]] = []

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        coroutine.send(None)
        self.kept.append(coroutine)


class ConcurrentWork(TestCase):
    """Work on several items at once."""

    def test_that_is_discarded_does_not_resume_who_waits_for_it(self) -> None:
        scheduler = KeptCoroutines()

        async def work(item: int) -> int:
            found: int = await Deferred()
            return found + item

        waiting = Deferred.fromCoroutine(map_concurrently(scheduler, work, [1, 2], 2))
        for each in scheduler.kept:
            each.close()
        self.assertNoResult(waiting)


class UncancelledWork(TestCase):
    """Work that is waited for, and the waiting is cancelled."""

    def setUp(self) -> None:
        self.scheduler = TwistedScheduler(Clock())
        self.gate: Deferred[int] = Deferred()
        self.done: list[int] = []

    async def work(self) -> int:
        found = await self.gate
        self.done.append(found)
        return found

    def wait(self) -> Deferred[int]:
        return Deferred.fromCoroutine(uncancelled(self.scheduler, "work", self.work()))

    def test_has_its_result_and_its_error(self) -> None:
        waiting = self.wait()
        self.gate.callback(3)
        self.assertEqual(self.successResultOf(waiting), 3)
        self.gate = Deferred()
        waiting = self.wait()
        self.gate.errback(OddError())
        self.failureResultOf(waiting, OddError)

    def test_goes_on_when_the_waiting_is_cancelled(self) -> None:
        waiting = self.wait()
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(self.done, [])
        self.gate.callback(3)
        self.assertEqual(self.done, [3])

    def test_logs_an_error_that_nobody_waits_for(self) -> None:
        waiting = self.wait()
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.gate.errback(OddError())
        self.assertEqual(len(self.flushLoggedErrors(OddError)), 1)
