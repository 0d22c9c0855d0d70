"""The interfaces of handler classes, as zope interfaces that are verified at load time."""

# A method of an interface has no self, which neither mypy nor ruff expects.
# mypy: disable-error-code="misc,no-untyped-def"
# ruff: noqa: N805

from __future__ import annotations

from zope.interface import Attribute, Interface


class IHandler(Interface):
    """Receives facts and commands in a worker.

    :class:`.Handler` implements it with methods that do nothing, and documents them. A class that
    does not inherit from it declares ``@implementer(IHandler)`` and provides all of this.
    """

    streams = Attribute("names of the streams to receive, or None for all")
    view = Attribute("'per_writer', 'linear', or None for the view of the connection")

    async def on_start(access):
        """Prepare to run with the given :class:`.Access`."""

    async def on_rows(batch):
        """Handle a :class:`.Batch`."""

    async def on_command(source, command):
        """Handle a command that is not a row, from the connection of that name."""

    async def on_reset(stream, writer, position):
        """Forget the facts of a writer above ``position``."""


class ITransactionalHandler(IHandler):
    """Handles each fact exactly once, in the transaction that moves its position.

    :class:`.TransactionalHandler` implements it, except for :meth:`apply`.
    """

    def apply(txn, batch):
        """Handle a :class:`.Batch` using the transaction only; runs in a database thread."""
