"""Handlers that do not fit, for tests of what is refused."""

from __future__ import annotations

from synrepl.services.handlers import Handler, TransactionalHandler


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


instance = Orders()
