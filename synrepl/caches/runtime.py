"""What caches need to let several callers wait for one load."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from synrepl.core.clock import Promise


@dataclass(frozen=True, slots=True)
class CacheRuntime:
    """How this process waits; the names of :mod:`synrepl.core.clock`.

    :ivar promise: makes a promise
    :ivar start: runs a coroutine on its own; the promise of its result
    :ivar seconds: the time, never going back
    """

    promise: Callable[[], Promise[Any]]
    start: Callable[[Coroutine[Any, Any, Any]], Promise[Any]]
    seconds: Callable[[], float]

    def to_promise(self, result: Any) -> Any:
        """A result as it is; but a coroutine, of which only one could wait, as a promise."""
        return self.start(result) if inspect.iscoroutine(result) else result


def is_deferred(result: object) -> bool:
    """Whether a function has returned something to wait for: a ``Deferred``."""
    return hasattr(result, "addCallbacks")


def returns_deferred(function: Callable[..., Any]) -> bool | None:
    """Whether a function says that it returns something to wait for; None: a call will tell.

    A generator below a decorator says so (``inlineCallbacks``), and its annotation may.
    """
    inner = inspect.unwrap(function)
    if inner is not function and inspect.isgeneratorfunction(inner):
        return True
    answer = str(getattr(inner, "__annotations__", {}).get("return"))
    return True if "Deferred" in answer or "Awaitable" in answer else None
