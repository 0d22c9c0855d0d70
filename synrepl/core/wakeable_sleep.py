"""A sleep that other code can end early, on any scheduler."""

from __future__ import annotations

from synrepl.core.clock import Promise, Scheduler


class WakeableSleep:
    """The sleep of one coroutine."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._asleep: Promise[bool] | None = None

    async def sleep(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until :meth:`wake`; returns whether it was woken."""
        promise: Promise[bool] = self._scheduler.promise()
        self._asleep = promise
        timer = self._scheduler.callLater(seconds, self._end, False)
        woken = await promise
        if timer.active():
            timer.cancel()
        return woken

    def wake(self) -> None:
        """End the sleep; nothing happens if there is none."""
        self._end(True)

    def _end(self, woken: bool) -> None:
        promise, self._asleep = self._asleep, None
        if promise is not None:
            promise.callback(woken)
