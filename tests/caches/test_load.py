"""Loads that others wait for."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.caches.load import Load
from synrepl.caches.registry import Caches
from synrepl.caches.runtime import CacheRuntime


class DiscardedLoads(SynchronousTestCase):
    """The coroutine that loads is discarded, as when a process ends."""

    def test_who_waits_is_not_resumed(self) -> None:
        loads: list[Coroutine[Any, Any, Any]] = []

        def start(load: Coroutine[Any, Any, Any]) -> Deferred[Any]:
            load.send(None)
            loads.append(load)
            return Deferred()

        caches = Caches(CacheRuntime(Deferred, start, Clock().seconds))

        @caches.cached(name="get")
        async def get(key: str) -> str:
            found: str = await Deferred()
            return found

        waiting = [Deferred.fromCoroutine(get("a")) for _ in range(2)]
        loads.pop().close()
        for each in waiting:
            self.assertNoResult(each)
        Deferred.fromCoroutine(get("a"))
        self.assertEqual(len(loads), 1)

    def test_any_other_error_is_raised_for_all(self) -> None:
        for error in (ValueError(), SystemExit()):
            load = Load(0)
            waiting: list[Deferred[Any]] = [Deferred(), Deferred()]
            for each in waiting:
                load.join(each)
            load.fail(error)
            for each in waiting:
                self.failureResultOf(each, type(error))
