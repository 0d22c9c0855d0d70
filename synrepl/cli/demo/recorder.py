"""The handler of the demo's workers: it records every fact that it applies.

Each worker has a table. A fact is inserted there in the transaction that moves the worker's
position, so the table holds exactly what the worker has applied. Its primary key refuses a fact
that is applied twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from synrepl.core.names import column_name
from synrepl.core.tokens import Range, Token
from synrepl.daemon.config.units import duration
from synrepl.services.handlers import Batch, TransactionalHandler
from synrepl.storage import idempotency
from synrepl.storage.database import Transaction
from synrepl.streams.row import Row

SCHEMA = "demo"


class FactDigest(NamedTuple):
    """A fact, reduced to what a comparison needs.

    :ivar writer: "" in the linear view
    :ivar rows: the number of rows
    :ivar digest: hash of the cells of its rows
    """

    token: Token
    writer: str
    rows: int
    digest: bytes


def digest_fact(token: Token, writer: str, rows: Sequence[Row]) -> FactDigest:
    """The digest of a fact with these rows."""
    return FactDigest(token, writer, len(rows), idempotency.digest([rows]))


class AppliedTable:
    """The table in which one worker records the facts that it has applied.

    :param worker: its name, which must also be a valid column name
    """

    def __init__(self, worker: str) -> None:
        self._table = f'{SCHEMA}."{column_name(worker)}"'

    def create(self, txn: Transaction) -> None:
        """Create the table."""
        txn.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        txn.execute(
            f"CREATE TABLE {self._table} (stream text, token bigint, writer text,"
            " row_count integer NOT NULL, digest bytea NOT NULL,"
            " nth bigint GENERATED ALWAYS AS IDENTITY,"
            " PRIMARY KEY (stream, token, writer))"
        )

    def insert(self, txn: Transaction, stream: str, facts: Iterable[FactDigest]) -> None:
        """Insert facts.

        :raises UniqueViolation: one of them is in the table already
        """
        lines = [
            f"{stream}\t{token}\t{writer}\t{rows}\t\\\\x{digest.hex()}\n"
            for token, writer, rows, digest in facts
        ]
        columns = "stream, token, writer, row_count, digest"
        txn.copy_in(f"COPY {self._table} ({columns}) FROM STDIN", lines)

    def delete_writer(self, txn: Transaction, stream: str, writer: str) -> None:
        """Delete the facts of a writer that has started again at token 1."""
        txn.execute(
            f"DELETE FROM {self._table} WHERE stream = %s AND writer = %s", (stream, writer)
        )

    def count_rows(self, txn: Transaction) -> Counter[str]:
        """The number of rows applied, by stream."""
        txn.execute(f"SELECT stream, sum(row_count) FROM {self._table} GROUP BY stream")
        return Counter({stream: int(rows) for stream, rows in txn.fetchall()})

    def count_out_of_order(self, txn: Transaction) -> Counter[str]:
        """The number of facts applied after a later one of the same writer, by stream."""
        txn.execute(
            "SELECT stream, count(*) FROM (SELECT stream, token < lag(token) OVER"
            f" (PARTITION BY stream, writer ORDER BY nth) AS late FROM {self._table}) AS applied"
            " WHERE late GROUP BY stream"
        )
        return Counter({stream: int(facts) for stream, facts in txn.fetchall()})

    def page(
        self, txn: Transaction, stream: str, after: tuple[Token, str], limit: int
    ) -> list[FactDigest]:
        """The next facts of a stream above (token, writer), in that order."""
        txn.execute(
            f"SELECT token, writer, row_count, digest FROM {self._table}"
            " WHERE stream = %s AND (token, writer) > (%s, %s) ORDER BY token, writer LIMIT %s",
            (stream, *after, limit),
        )
        return [
            FactDigest(token, writer, rows, bytes(digest))
            for token, writer, rows, digest in txn.fetchall()
        ]


class FactRecorder(TransactionalHandler):
    """Records the facts that it applies in the worker's :class:`AppliedTable`.

    :param worker: the worker's name
    :param delay: time to take per row, such as ``"0.5ms"``
    """

    def __init__(self, worker: str, delay: str = "0ms") -> None:
        self._table = AppliedTable(worker)
        self._delay_s = duration(delay)
        self._restarted: set[tuple[str, str]] = set()

    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Record a batch."""
        if batch.after == 0 and (batch.stream, batch.writer) in self._restarted:
            self._table.delete_writer(txn, batch.stream, batch.writer)
        # In the linear view the connection does not tell the writer of a fact, the database does.
        digests = [digest_fact(fact.token, batch.writer, fact.rows) for fact in batch.facts]
        self._table.insert(txn, batch.stream, digests)
        if self._delay_s:
            time.sleep(self._delay_s * sum(digest.rows for digest in digests))

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Note that an in-memory stream was lost with its writer: its tokens start at 1 again."""
        self._restarted.add((stream, writer))
