"""Runs coroutines without a running reactor."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing; its error is raised."""
    found: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(found.append)
    if not found:
        raise AssertionError("it waits")
    if isinstance(found[0], Failure):
        found[0].raiseException()
    result: T = found[0]
    return result
