"""The promises, tasks and clock that caches use, and the detection of Deferreds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from synrepl.core.clock import Promise


@dataclass(frozen=True, slots=True)
class CacheRuntime:
    """Lets several callers wait for one load; see :mod:`synrepl.core.clock`.

    :ivar promise: makes a promise
    :ivar start: starts a coroutine, and returns a promise of its result
    :ivar seconds: a monotonic clock
    """

    promise: Callable[[], Promise[Any]]
    start: Callable[[Coroutine[Any, Any, Any]], Promise[Any]]
    seconds: Callable[[], float]

    def to_promise(self, result: Any) -> Any:
        """Start a coroutine and return its promise; any other result is returned as it is."""
        return self.start(result) if inspect.iscoroutine(result) else result


def is_deferred(result: object) -> bool:
    """Whether a function returned a ``Deferred``."""
    return hasattr(result, "addCallbacks")


def returns_deferred(function: Callable[..., Any]) -> bool | None:
    """Whether a function is known to return a ``Deferred``; None if only a call will show it.

    A decorated generator (``inlineCallbacks``) does, and a return annotation may say so.
    """
    inner = inspect.unwrap(function)
    if inner is not function and inspect.isgeneratorfunction(inner):
        return True
    answer = str(getattr(inner, "__annotations__", {}).get("return"))
    return True if "Deferred" in answer or "Awaitable" in answer else None
