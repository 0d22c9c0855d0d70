"""Handlers that do not fit, for tests of what is refused."""

from __future__ import annotations

from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.wire.commands import Command


class NoHandler:
    """Has not the base class."""


class Wanting(Handler):
    """Wants an argument."""

    def __init__(self, path: str) -> None:
        raise AssertionError("a check makes no handlers")


class Misspelt(Handler):
    streams = frozenset({"orders", "ordres"})


class OneWord(Handler):
    streams = "orders"


class Orders(Handler):
    streams = frozenset({"orders"})


class Totals(TransactionalHandler):
    streams = frozenset({"orders"})


class FactsOnly(Handler):
    async def on_rows(self, batch: Batch) -> None:
        """Never called: no process is made of it."""


class Commands(FactsOnly):
    async def on_command(self, source: str, command: Command) -> None:
        """Never called, either."""


instance = Orders()
