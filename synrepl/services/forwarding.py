"""Requests of one process to another, for what only that one can do, such as writing a stream.

A request is an *action* with JSON as its argument and its result. Its errors cross the boundary, too, as far as their
classes are known to both sides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from synrepl.core.errors import InputError, SynreplError, Unavailable

#: Does an action in this process.
PerformAction = Callable[[dict[str, Any]], Awaitable[Any]]


class UnknownAction(InputError):
    """this process has no action {action!r}; it may be of another release, or not configured for it"""


class WriterUnreachable(Unavailable):
    """{writer!r} would have to do this, and its address is not known here; name it under 'writer_urls' of 'rooms'"""


class ForwardingFailed(Unavailable):
    """{writer!r} did not do what was asked of it ({error}): {message}"""


class ForwardsToWriter(Protocol):
    """Has other processes perform actions."""

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Have a process perform an action; it may have been performed although this raises an ``Unavailable``.

        :param writer: the name of its instance
        :param argument: JSON
        :raises WriterUnreachable: :raises ForwardingFailed:
        :raises SynreplError: the errors of the action
        """


class NoOtherWriters:
    """Implements :class:`ForwardsToWriter` for a process that knows no others."""

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Refuse.

        :raises WriterUnreachable:
        """
        raise WriterUnreachable(writer=writer)


class WriterActions:
    """The actions that this process performs for others.

    :param errors: classes of errors that the other side gets as they are
    """

    def __init__(self, errors: Iterable[type[SynreplError]]) -> None:
        self._errors = {each.__name__: each for each in errors}
        self._actions: dict[str, PerformAction] = {}
        #: The actions that only wait for something, for seconds, so that they must take no place from others.
        self.waiting: set[str] = set()

    def add(self, action: str, perform: PerformAction, *, waits: bool = False) -> None:
        """Add an action. Its argument comes from a process of this server, not from a client.

        :param waits: it only waits for something, and may be cancelled
        """
        self._actions[action] = perform
        if waits:
            self.waiting.add(action)

    async def perform(self, action: str, argument: dict[str, Any]) -> dict[str, Any]:
        """Perform an action; returns what :meth:`result` reads.

        :raises UnknownAction: :raises SynreplError: an error that does not cross the boundary
        """
        if action not in self._actions:
            raise UnknownAction(action=action[:100])
        try:
            return {"result": await self._actions[action](argument)}
        except SynreplError as error:
            if type(error).__name__ not in self._errors:
                raise
            facts = {name: str(value) for name, value in error.facts.items()}
            return {"error": type(error).__name__, "facts": facts}

    def result(self, writer: str, answer: Mapping[str, Any]) -> Any:
        """The result of an action, given the answer of another process.

        :raises ForwardingFailed: it is not an answer of :meth:`perform`
        :raises SynreplError: the error of the action
        """
        if "result" in answer:
            return answer["result"]
        kind, facts = self._errors.get(str(answer.get("error"))), answer.get("facts")
        if kind is None or not isinstance(facts, dict) or kind.placeholders() - facts.keys():
            error, message = answer.get("error", "no error"), answer.get("message", "no message")
            raise ForwardingFailed(writer=writer, error=error, message=message)
        raise kind(**facts)
