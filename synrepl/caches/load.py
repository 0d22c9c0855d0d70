"""One load of a key that is under way, and those who wait for it."""

from __future__ import annotations

from typing import Any

from synrepl.core.clock import Promise


class Load:
    """Begun once, waited for by any number, ended once: a second end changes nothing.

    :param moment: which moment it was at the beginning, see :class:`~.cache.Cache`
    :ivar is_joinable: whoever wants the key meanwhile may wait for this load; not so
        while a plain function runs, which nobody can wait for
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
        """It has ended with a value."""
        self._end(value, None)

    def fail(self, error: BaseException) -> None:
        """It has ended with an error."""
        self._end(None, error)

    def result(self) -> Any:
        """What it has brought, once it has ended; raises what it ended with."""
        if self._error is not None:
            raise self._error
        return self._value

    def join(self, promise: Promise[Any]) -> Promise[Any]:
        """Have a promise of the caller's resolved with what the load brings."""
        if self._ended:
            self._tell(promise)
        else:
            self._waiting.append(promise)
        return promise

    def _end(self, value: Any, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended, self._value, self._error = True, value, error
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            self._tell(promise)

    def _tell(self, promise: Promise[Any]) -> None:
        if self._error is None:
            promise.callback(self._value)
        else:
            promise.errback(self._error)
