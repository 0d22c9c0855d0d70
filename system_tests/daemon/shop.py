"""Handlers of a shop, for tests of whole processes: as in the README."""

from __future__ import annotations

from pathlib import Path

from twisted.internet import reactor

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range, Token
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.storage.database import Transaction

#: SQL that creates the table of :class:`Totals`.
TOTALS = "CREATE TABLE totals (token bigint, writer text, order_id text)"


class NoSuchCustomer(Exception):
    """An order is refused by a handler."""


class Mailer(Handler):
    """Writes a line for each order: writer, token, order.

    :param path: of the file
    :param closed: it waits for as long as this file is there
    :param cured: it takes orders that begin with "bad" once this file is there
    """

    streams = frozenset({"orders"})

    def __init__(self, path: str, closed: str = "", cured: str = "") -> None:
        self._path = Path(path)
        self._closed = Path(closed) if closed else None
        self._cured = Path(cured) if cured else None

    async def on_rows(self, batch: Batch) -> None:
        for fact in batch.facts:
            while self._closed is not None and self._closed.exists():
                await TwistedScheduler(reactor).sleep(0.01)
            for row in fact.rows:
                order: str = row.order_id  # type: ignore[attr-defined]
                self._path.touch()
                refuse_bad(order, self._cured)
                again = " again" if batch.replayed else ""
                with self._path.open("a") as file:
                    file.write(f"{batch.writer or '-'} {fact.token} {order}{again}\n")


class LossRecordingMailer(Mailer):
    """A mailer that records lost ranges in a second file."""

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        assert lost is not None
        with self._path.with_suffix(".lost").open("a") as file:
            file.write(f"{writer} {lost.after} {lost.upto}\n")


class MailerWithoutRanges(Mailer):
    """A mailer whose ``on_reset`` has the old signature, without ranges."""

    async def on_reset(self, stream: str, writer: str, position: Token) -> None:
        with self._path.with_suffix(".lost").open("a") as file:
            file.write(f"{writer} {position}\n")


class LenientMailer(Mailer):
    """A mailer that accepts all orders."""

    def __init__(self, path: str, closed: str = "", cured: str = "") -> None:
        super().__init__(path, closed, path)


class LinearMailer(Mailer):
    """A mailer with the linear view."""

    view = "linear"


class PerWriterMailer(Mailer):
    """A mailer with the per-writer view."""

    view = "per_writer"


class Totals(TransactionalHandler):
    """Stores a row for each order in the database.

    :param cured: it takes orders that begin with "bad" once this file is there
    """

    streams = frozenset({"orders"})

    def __init__(self, cured: str = "") -> None:
        self._cured = Path(cured) if cured else None

    def apply(self, txn: Transaction, batch: Batch) -> None:
        for fact in batch.facts:
            for row in fact.rows:
                order: str = row.order_id  # type: ignore[attr-defined]
                txn.execute(
                    "INSERT INTO totals VALUES (%s, %s, %s)", (fact.token, fact.writer, order)
                )
                refuse_bad(order, self._cured)


def refuse_bad(order: str, cured: Path | None) -> None:
    """Refuse some orders.

    :raises NoSuchCustomer: it is one of those
    """
    if order.startswith("bad") and not (cured is not None and cured.exists()):
        raise NoSuchCustomer(f"nobody has ordered {order}")
