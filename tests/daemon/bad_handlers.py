"""Handlers that do not fit, for tests of what is refused."""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from synrepl.services.handler_interfaces import IHandler, ITransactionalHandler
from synrepl.services.handlers import Access, Batch, Handler, TransactionalHandler
from synrepl.wire.commands import Command


class NoHandler:
    """Neither inherits from the base class nor declares the interface."""


@implementer(IHandler)
class Incomplete:
    """Lacks a method, and another one takes too little."""

    streams = frozenset({"orders"})
    view = None

    async def on_start(self, access: Access) -> None: ...

    async def on_rows(self) -> None: ...

    async def on_command(self, source: str, command: Command) -> None: ...


class NarrowRows(Handler):
    """Overrides a method with one that takes too little."""

    async def on_rows(self) -> None: ...  # type: ignore[override]


class NoApply(TransactionalHandler):
    """Lacks what a transactional handler is for."""


class AsyncApply(TransactionalHandler):
    """Its coroutine would never be awaited."""

    async def apply(self, txn: Any, batch: Batch) -> None:  # type: ignore[override]
        raise AssertionError("nobody calls it")


@implementer(IHandler)
class Independent:
    """Inherits from nothing; its streams come from its configuration."""

    def __init__(self, streams: list[str]) -> None:
        self.streams = streams
        self.view = None
        self.seen: list[Batch] = []

    async def on_start(self, access: Access) -> None: ...

    async def on_rows(self, batch: Batch) -> None:
        self.seen.append(batch)

    async def on_command(self, source: str, command: Command) -> None: ...

    async def on_reset(self, stream: str, writer: str, position: int) -> None: ...


class NoView(Independent):
    """Forgets an attribute of the interface."""

    def __init__(self, streams: list[str]) -> None:
        super().__init__(streams)
        del self.view


@implementer(ITransactionalHandler)
class IndependentTotals(Independent):
    """Inherits from no base class of the product, and works in the database."""

    def apply(self, txn: Any, batch: Batch) -> None:
        self.seen.append(batch)


class NeedsArgument(Handler):
    """Wants an argument."""

    def __init__(self, path: str) -> None:
        raise AssertionError("a check makes no handlers")


class UnknownStreamName(Handler):
    streams = frozenset({"orders", "ordres"})


class StreamsAsText(Handler):
    streams = "orders"


class Orders(Handler):
    streams = frozenset({"orders"})


class Totals(TransactionalHandler):
    streams = frozenset({"orders"})

    def apply(self, txn: Any, batch: Batch) -> None: ...


class FactsOnly(Handler):
    async def on_rows(self, batch: Batch) -> None:
        """Never called: no process is made of it."""


class Commands(FactsOnly):
    async def on_command(self, source: str, command: Command) -> None:
        """Never called, either."""


instance = Orders()
