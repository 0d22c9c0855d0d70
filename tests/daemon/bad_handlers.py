"""Handlers that violate their interface or do not fit their process, and a few that are right."""

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
    """Lacks a method, and another one accepts too few arguments."""

    streams = frozenset({"orders"})
    view = None

    async def on_start(self, access: Access) -> None: ...

    async def on_rows(self) -> None: ...

    async def on_command(self, source: str, command: Command) -> None: ...


class NarrowRows(Handler):
    """Overrides a method with one that accepts too few arguments."""

    async def on_rows(self) -> None: ...  # type: ignore[override]


class NoApply(TransactionalHandler):
    """A transactional handler without ``apply``."""


class AsyncApply(TransactionalHandler):
    """A transactional handler whose ``apply`` is a coroutine, which would never be awaited."""

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
    """Lacks an attribute of the interface."""

    def __init__(self, streams: list[str]) -> None:
        super().__init__(streams)
        del self.view


@implementer(ITransactionalHandler)
class IndependentTotals(Independent):
    """A transactional handler that inherits from no base class of the product."""

    def apply(self, txn: Any, batch: Batch) -> None:
        self.seen.append(batch)


class NeedsArgument(Handler):
    """Has a required argument."""

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
