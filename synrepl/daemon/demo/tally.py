"""What the demo's workers do with facts: they write down what they applied.

Each worker has a table of its own, and a fact gets its row there in the very
transaction that moves the worker's position, so the table says exactly what
the worker has applied. Its primary key refuses a fact that comes twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from synrepl.core.names import column_name
from synrepl.core.tokens import Range, Token
from synrepl.daemon.units import duration
from synrepl.services.handlers import Batch, TransactionalHandler
from synrepl.storage import idempotency
from synrepl.storage.database import Transaction
from synrepl.streams.row import Row

SCHEMA = "demo"


class Entry(NamedTuple):
    """One fact, as small as it can be compared.

    :ivar writer: "" in the linear view
    :ivar digest: of the cells of its rows
    """

    token: Token
    writer: str
    rows: int
    digest: bytes


def entry(token: Token, writer: str, rows: Sequence[Row]) -> Entry:
    """The entry of a fact."""
    return Entry(token, writer, len(rows), idempotency.digest([rows]))


class TallyTable:
    """The table of one worker.

    :param name: of the worker, in the pattern of a column
    """

    def __init__(self, name: str) -> None:
        self._table = f'{SCHEMA}."{column_name(name)}"'

    def create(self, txn: Transaction) -> None:
        """Make it."""
        txn.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        txn.execute(
            f"CREATE TABLE {self._table} (stream text, token bigint, writer text,"
            " row_count integer NOT NULL, digest bytea NOT NULL,"
            " nth bigint GENERATED ALWAYS AS IDENTITY,"
            " PRIMARY KEY (stream, token, writer))"
        )

    def add(self, txn: Transaction, stream: str, entries: Iterable[Entry]) -> None:
        """Write entries down.

        :raises UniqueViolation: one is there already
        """
        lines = [
            f"{stream}\t{token}\t{writer}\t{rows}\t\\\\x{digest.hex()}\n"
            for token, writer, rows, digest in entries
        ]
        columns = "stream, token, writer, row_count, digest"
        txn.copy_in(f"COPY {self._table} ({columns}) FROM STDIN", lines)

    def forget(self, txn: Transaction, stream: str, writer: str) -> None:
        """Forget what came of a writer that has started again."""
        txn.execute(
            f"DELETE FROM {self._table} WHERE stream = %s AND writer = %s", (stream, writer)
        )

    def rows(self, txn: Transaction) -> Counter[str]:
        """How many rows are written down, by stream."""
        txn.execute(f"SELECT stream, sum(row_count) FROM {self._table} GROUP BY stream")
        return Counter({stream: int(rows) for stream, rows in txn.fetchall()})

    def out_of_order(self, txn: Transaction) -> Counter[str]:
        """How many facts came after one of the same writer with a larger token, by stream."""
        txn.execute(
            "SELECT stream, count(*) FROM (SELECT stream, token < lag(token) OVER"
            f" (PARTITION BY stream, writer ORDER BY nth) AS late FROM {self._table}) AS came"
            " WHERE late GROUP BY stream"
        )
        return Counter({stream: int(facts) for stream, facts in txn.fetchall()})

    def page(
        self, txn: Transaction, stream: str, after: tuple[Token, str], limit: int
    ) -> list[Entry]:
        """Entries of a stream by (token, writer), above ``after``."""
        txn.execute(
            f"SELECT token, writer, row_count, digest FROM {self._table}"
            " WHERE stream = %s AND (token, writer) > (%s, %s) ORDER BY token, writer LIMIT %s",
            (stream, *after, limit),
        )
        return [
            Entry(token, writer, rows, bytes(digest))
            for token, writer, rows, digest in txn.fetchall()
        ]


class Tally(TransactionalHandler):
    """Writes down what is applied.

    :param worker: whose table
    :param delay: how long it takes over each row, such as ``"0.5ms"``
    """

    def __init__(self, worker: str, delay: str = "0ms") -> None:
        self._table = TallyTable(worker)
        self._delay_s = duration(delay)
        self._started_again: set[tuple[str, str]] = set()

    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Write a batch down."""
        if batch.after == 0 and (batch.stream, batch.writer) in self._started_again:
            self._table.forget(txn, batch.stream, batch.writer)
        # In the linear view the connection does not tell the writer of a fact, the database does.
        entries = [entry(fact.token, batch.writer, fact.rows) for fact in batch.facts]
        self._table.add(txn, batch.stream, entries)
        if self._delay_s:
            time.sleep(self._delay_s * sum(each.rows for each in entries))

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """A stream in memory was lost with its writer: its tokens begin at 1 again."""
        self._started_again.add((stream, writer))
