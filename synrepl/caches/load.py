"""A load of a key in progress, and the callers that wait for it."""

from __future__ import annotations

from typing import Any

from synrepl.core.clock import Promise


class Load:
    """One load, with any number of waiting callers. Only its first end counts.

    :param moment: moment at which it began, see :class:`~.cache.Cache`
    :ivar is_joinable: whether other callers can wait for this load; False while a
        synchronous function runs
    """

    __slots__ = ("_ended", "_error", "_value", "_waiting", "is_joinable", "moment")

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.is_joinable = True
        self._waiting: list[Promise[Any]] = []
        self._ended = False
        self._value: Any = None
        self._error: BaseException | None = None

    def succeed(self, value: Any) -> None:
        """End with a value."""
        self._end(value, None)

    def fail(self, error: BaseException) -> None:
        """End with an error.

        ``GeneratorExit`` is none: a coroutine that loaded is discarded, and whoever waits for it is not resumed.
        """
        if not isinstance(error, GeneratorExit):
            self._end(None, error)

    def result(self) -> Any:
        """The value of an ended load; raises its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def join(self, promise: Promise[Any]) -> Promise[Any]:
        """Resolve the caller's promise with the result of the load."""
        if self._ended:
            self._resolve(promise)
        else:
            self._waiting.append(promise)
        return promise

    def _end(self, value: Any, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended, self._value, self._error = True, value, error
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            self._resolve(promise)

    def _resolve(self, promise: Promise[Any]) -> None:
        if self._error is None:
            promise.callback(self._value)
        else:
            promise.errback(self._error)
