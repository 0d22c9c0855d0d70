"""The services' scheduler, on a Twisted reactor or test clock."""

from __future__ import annotations

import random as system_random
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.core.clock import Clock, DelayedCall
from synrepl.core.retry import RandomSource


class TwistedScheduler:
    """Implements :class:`synrepl.core.clock.Scheduler`.

    :param clock: a reactor, ``task.Clock`` or ``MemoryReactorClock``
    :param random: source of :meth:`random`
    """

    _log = Logger()

    def __init__(self, clock: Clock, random: RandomSource = system_random.random) -> None:
        self._clock = clock
        self._random = random
        self._sleeping: set[Deferred[None]] = set()
        self._stopped = False

    def seconds(self) -> float:
        """Now, in seconds."""
        return self._clock.seconds()

    def random(self) -> float:
        """A number from 0 up to 1, for jitter."""
        return self._random()

    def callLater(self, delay: float, call: Callable[..., object], *args: object) -> DelayedCall:
        """Run ``call(*args)`` once, ``delay`` seconds from now."""
        return self._clock.callLater(delay, call, *args)

    def promise(self) -> Deferred[Any]:
        """A new, unresolved promise."""
        return Deferred()

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on its own; an error it raises is logged under ``name``."""

        def log(failure: Failure) -> None:
            if not isinstance(failure.value, CancelledError):  # woken by stop(), to end
                self._log.failure("{name} failed", failure=failure, name=name)

        Deferred.fromCoroutine(coroutine).addErrback(log)

    def sleep(self, seconds: float) -> Deferred[None]:
        """A promise that resolves after ``seconds``; cancelling it cancels the timer."""

        def cancel(_: Deferred[None]) -> None:
            self._sleeping.discard(sleeping)
            timer.cancel()

        def wake() -> None:
            self._sleeping.discard(sleeping)
            sleeping.callback(None)

        sleeping: Deferred[None] = Deferred(cancel)
        timer = self._clock.callLater(seconds, wake)
        self._sleeping.add(sleeping)
        if self._stopped:
            sleeping.cancel()
        return sleeping

    def stop(self) -> None:
        """Cancel all present and future sleeps: their coroutines end with ``CancelledError``."""
        self._stopped = True
        while self._sleeping:
            self._sleeping.pop().cancel()
