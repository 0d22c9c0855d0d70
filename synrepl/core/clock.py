"""Protocols for time and for waiting.

Services are coroutines that run under a real reactor, a test clock and the
simulator, so they never import Twisted: they take a :class:`Scheduler`. The names ``seconds`` and ``callLater`` are Twisted's, so
that reactors and test clocks can be used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class DelayedCall(Protocol):
    """A call that has been scheduled."""

    def cancel(self) -> None:
        """Cancel the call; an error if it has already run."""

    def active(self) -> bool:
        """True until it has run or been cancelled."""


class Clock(Protocol):
    """Time, as seconds since some fixed moment, and calls at a later time."""

    def seconds(self) -> float:
        """Now, in seconds since the epoch."""

    def callLater(self, delay: float, call: Callable[..., object], *args: object) -> DelayedCall:
        """Run ``call(*args)`` once, ``delay`` seconds from now."""


class Promise(Protocol[T]):
    """A result that one coroutine awaits and other code supplies once, such as a ``Deferred``."""

    def callback(self, result: T) -> None:
        """Supply the result."""

    def errback(self, fail: BaseException) -> None:
        """Supply an error, which the awaiting coroutine raises."""

    def __await__(self) -> Generator[Any, Any, T]: ...


class Scheduler(Clock, Protocol):
    """A clock that can also start coroutines and make promises for them to await."""

    def random(self) -> float:
        """A random number in [0, 1) for jitter; as reproducible as the clock is."""

    def promise(self) -> Promise[Any]:
        """A new, unresolved promise."""

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine. An error that it raises is logged under ``name``."""

    def sleep(self, seconds: float) -> Promise[None]:
        """A promise that resolves after ``seconds``."""
