"""Writes and reads facts, as functions of a transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import (
    DeferredScript,
    PlannedOnce,
    Prepared,
    Script,
    Transaction,
    planned,
    value,
)
from synrepl.storage.json_rows import json_rows
from synrepl.storage.store import FactsLost, Page, Trimmed
from synrepl.storage.tables import id_bounds, primary_key, sequence_name, table_name
from synrepl.storage.writers import Claim
from synrepl.streams.columns import columns
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

Cells = tuple[object, ...]

#: From this number of rows on, COPY with its extra round trip is faster than one INSERT.
COPY_ROWS = 24

# Among the cells of a row, the ordinal of its fact is in the place of the stream ID that the fact will get: no column of
# a stream has that name, nor that of the row number.
_FACT, _ROW = "stream_id", "row_no"


class FactTable:
    """The statements of one stream's table."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._codec = RowCodec(stream)
        self._table = table_name(stream)
        names = ", ".join(f'"{column.name}"' for column in columns(stream))
        self._names = names
        self._columns = f"stream_id, row_no, writer, {names}"
        # CAST, not '::', which would bind closer than the minus of the least bigint.
        types = ["text", *(column.type.sql for column in columns(stream))]
        cells = ", ".join(f"CAST(${n} AS {sql})" for n, sql in enumerate(types, 6))
        #: Appends one row in one statement; parameters: claim, 1, floor, writer, cells.
        self.single = Prepared(
            f"append_{stream.name}",
            f"INSERT INTO {self._table} ({self._columns})"
            f" SELECT synrepl.reserve($1, $2, $3, '{sequence_name(stream)}', $4, $5), 0, {cells}"
            " RETURNING stream_id",
        )
        casts = ", ".join(f"CAST(%s AS {sql})" for sql in types)
        self._insert = Script(
            [
                PlannedOnce(
                    f"INSERT INTO {self._table} ({self._columns})"
                    f" SELECT synrepl.reserve(%s, %s, %s, '{sequence_name(stream)}', %s, %s), 0,"
                    f" {casts} RETURNING stream_id"
                )
            ]
        )
        row = f"(%s, %s, %s{', %s' * len(columns(stream))})"
        insert = f"INSERT INTO {self._table} ({self._columns}) VALUES {row}"
        #: By number of rows, from 1 on: an event that changes the state is a fact of two.
        self._write_scripts = [
            DeferredScript([PlannedOnce(insert + f", {row}" * n)]) for n in (0, 1)
        ]
        order = "DESC" if stream.counts_down else "ASC"
        self._order = f"stream_id {order}, row_no"
        self._edge = "-min(stream_id)" if stream.counts_down else "max(stream_id)"
        #: The constraint that a fact breaks if the sequence was behind the table.
        self.primary_key = primary_key(stream)
        self._reserve = f"synrepl.reserve(%s, %s, %s, '{sequence_name(stream)}', %s, %s)"
        self._column_names = tuple(column.name for column in columns(stream))
        self._insert_few_script = self._few(stream)

    def single_params(self, claim: Claim, writer: str, row: Row, floor: Token) -> Cells:
        """The parameters of :attr:`single`."""
        return (*claim, 1, floor, writer, *self._codec.cells(row))

    def highest(self, txn: Transaction) -> Token:
        """The largest token in the table or in recorded positions."""
        return int(
            value(
                txn,
                f"SELECT greatest(s.position, s.trimmed, (SELECT {self._edge} FROM {self._table}),"
                " (SELECT max(position) FROM synrepl._writers WHERE stream = s.stream))"
                " FROM synrepl._streams s WHERE s.stream = %s",
                (self.stream.name,),
            )
        )

    def repair(self, txn: Transaction, claim: Claim) -> None:
        """Move the sequence forward if it is behind its table or the recorded positions (R7)."""
        last = value(txn, f"SELECT last_value FROM {sequence_name(self.stream)}")
        highest = self.highest(txn)
        if abs(int(last)) < highest:
            self._take(txn, claim, 1, highest)

    def reserve(self, txn: Transaction, claim: Claim, count: int, floor: Token) -> list[Token]:
        """Enter as the claimed writer and reserve tokens until the transaction ends.

        :param floor: the largest token that the caller knows; tokens in the database
            count, too (R7)
        """
        return self._take(txn, claim, count, max(floor, self.highest(txn)))

    def append(
        self,
        txn: Transaction,
        claim: Claim,
        writer: str,
        facts: Sequence[Sequence[Row]],
        floor: Token,
    ) -> list[Token]:
        """Reserve a token for each fact and write it."""
        cells = [[self._codec.cells(row) for row in rows] for rows in facts]
        tokens = self.reserve(txn, claim, len(cells), floor)
        self._copy(txn, writer, zip(tokens, cells, strict=True))
        return tokens

    def append_in_one_statement(
        self,
        txn: Transaction,
        claim: Claim,
        writer: str,
        facts: Sequence[Sequence[Row]],
        floor: Token,
    ) -> list[Token]:
        """Like :meth:`append`, but a few rows take one statement.

        It does not read the largest token in the table.

        :raises UniqueViolation: the sequence was behind the table; use :meth:`append` then
        """
        if not all(facts) or sum(map(len, facts)) >= COPY_ROWS:
            return self.append(txn, claim, writer, facts, floor)
        cells = [[self._codec.cells(row) for row in rows] for rows in facts]
        reservation = (*claim, len(cells), floor)
        if len(cells) == len(cells[0]) == 1:
            return self._insert_one(txn, reservation, writer, cells[0][0])
        return self._insert_few(txn, reservation, writer, cells)

    def early_column(self, claim: Claim, floor: Token) -> tuple[str, Cells]:
        """SQL that reserves one token in a statement of the caller's, and its parameters."""
        return f"(SELECT {self._reserve})", (*claim, 1, floor)

    def write_deferred(self, txn: Transaction, fact: Fact) -> None:
        """Write a fact at a reserved token: one of a row or two in the round trip of what follows.

        :raises UniqueViolation: also when it is sent: the sequence was behind the table
        """
        if not 0 < len(fact.rows) <= len(self._write_scripts):
            self.write(txn, fact.writer, [fact])
            return
        stream_id = self.stream.stream_id(fact.token)
        cells = [
            cell
            for row_no, each in enumerate(fact.rows)
            for cell in (stream_id, row_no, fact.writer, *self._codec.cells(each))
        ]
        txn.execute(self._write_scripts[len(fact.rows) - 1], cells)

    def write(self, txn: Transaction, writer: str, facts: Sequence[Fact]) -> None:
        """Write facts at reserved tokens."""
        self._copy(
            txn,
            writer,
            ((fact.token, [self._codec.cells(row) for row in fact.rows]) for fact in facts),
        )

    def _take(self, txn: Transaction, claim: Claim, count: int, floor: Token) -> list[Token]:
        txn.execute(f"SELECT {self._reserve}", (*claim, count, floor))
        return [abs(int(row[0])) for row in txn.fetchall()]

    def _insert_one(
        self, txn: Transaction, reservation: Cells, writer: str, cells: Cells
    ) -> list[Token]:
        txn.execute(self._insert, (*reservation, writer, *cells))
        return [abs(int(txn.fetchone()[0]))]

    def _few(self, stream: Stream) -> Script:
        """Reserves tokens for several facts, and writes their rows, which are JSON objects of texts.

        It is one statement for any number of rows. With a parameter for each cell, PostgreSQL would parse and plan
        it each time.
        """
        names = [f'"{column.name}"' for column in columns(stream)]
        cells = ", ".join(
            f"CAST(cells.{name} AS {column.type.sql})"
            for name, column in zip(names, columns(stream), strict=True)
        )
        fields = ", ".join(f"{name} text" for name in names)
        return planned(
            f"INSERT INTO {self._table} ({self._columns})"
            f" SELECT ids.id, cells.{_ROW}, %s, {cells}"
            f" FROM {self._reserve} WITH ORDINALITY AS ids (id, ordinal)"
            f" JOIN json_to_recordset(%s) AS cells ({_FACT} bigint, {_ROW} integer, {fields})"
            f" ON cells.{_FACT} = ids.ordinal RETURNING stream_id, row_no"
        )

    def _insert_few(
        self, txn: Transaction, reservation: Cells, writer: str, facts: list[list[Cells]]
    ) -> list[Token]:
        names = self._column_names
        rows: list[dict[str, object]] = []
        for ordinal, each in enumerate(facts, 1):
            for row_no, cells in enumerate(each):
                row: dict[str, object] = {
                    name: cell if cell is None else _text(cell)
                    for name, cell in zip(names, cells, strict=True)
                }
                row[_FACT], row[_ROW] = ordinal, row_no
                rows.append(row)
        text = json_rows(self._table, rows)
        txn.execute(self._insert_few_script, (writer, *reservation, text))
        return sorted(abs(int(stream_id)) for stream_id, row_no in txn.fetchall() if row_no == 0)

    def _copy(
        self, txn: Transaction, writer: str, facts: Iterable[tuple[Token, list[Cells]]]
    ) -> None:
        stream_id, is_special = self.stream.stream_id, _COPY_SPECIAL.search
        lines = [
            "\t".join(
                [
                    str(stream_id(token)),
                    str(row_no),
                    writer,
                    *[
                        cell if type(cell) is str and not is_special(cell) else _copy_text(cell)
                        for cell in cells
                    ],
                ]
            )
            + "\n"
            for token, rows in facts
            for row_no, cells in enumerate(rows)
        ]
        if lines:
            txn.copy_in(f"COPY {self._table} ({self._columns}) FROM STDIN", lines)

    def page(self, txn: Transaction, span: Range, writer: str | None, limit: int) -> Page:
        """About ``limit`` rows of the facts in ``span``; a fact is never split.

        :raises Trimmed: facts of the range were trimmed
        :raises FactsLost: the range begins among facts that a failover may have lost
        """
        rows = [] if span.empty else self._select(txn, span, writer, limit + 1)
        split = abs(rows[-1][0]) if len(rows) > limit else None
        if split is not None:
            whole = [row for row in rows if abs(row[0]) != split]
            # One fact alone may be larger than the page.
            rows = whole or self._select(txn, Range(split - 1, split), writer, None)
        # Checked last: facts trimmed between the statements must not look like no facts.
        trimmed, lost = self._gone(txn, span, writer)
        if lost is not None:
            raise FactsLost(
                stream=self.stream.name, kept=lost.after, floor=lost.upto, after=span.after
            )
        if span.after < trimmed:
            raise Trimmed(stream=self.stream.name, trimmed=trimmed, after=span.after)
        facts = tuple(self._facts(rows))
        if split is None:
            return Page(facts, max(span), is_limited=False)  # an empty range ends where it begins
        upto = facts[-1].token
        return Page(facts, upto, is_limited=upto < span.upto)

    def _gone(
        self, txn: Transaction, span: Range, writer: str | None
    ) -> tuple[Token, Range | None]:
        """The trimmed position, of one writer or of all, and the failover loss in which a span begins."""
        name, of = self.stream.name, writer or ""
        txn.execute(
            _GONE_OF_ALL if writer is None else _GONE_OF_WRITER,
            (name, of, name, of, span.after + 1, span.upto, span.after),
        )
        # The row without a floor has the trimmed position; another one may have a loss.
        found = {floor: int(at or 0) for at, floor in txn.fetchall()}
        trimmed = found.pop(None)
        lost = next((Range(kept, int(floor)) for floor, kept in found.items()), None)
        return trimmed, lost

    def reached(self, txn: Transaction, span: Range) -> dict[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""
        txn.execute(
            f"SELECT writer, max(abs(stream_id)) FROM {self._table}"
            " WHERE stream_id BETWEEN %s AND %s GROUP BY writer",
            id_bounds(self.stream, span),
        )
        return {writer: int(token) for writer, token in txn.fetchall()}

    def _select(
        self, txn: Transaction, span: Range, writer: str | None, limit: int | None
    ) -> list[tuple[Any, ...]]:
        mine = "" if writer is None else " AND writer = %s"
        txn.execute(
            f"SELECT stream_id, writer, {self._names} FROM {self._table}"
            f" WHERE stream_id BETWEEN %s AND %s{mine} ORDER BY {self._order} LIMIT %s",
            (*id_bounds(self.stream, span), *(() if writer is None else (writer,)), limit),
        )
        return txn.fetchall()

    def _facts(self, rows: list[tuple[Any, ...]]) -> Iterator[Fact]:
        from_cells = self._codec.from_cells
        for (stream_id, writer), group in groupby(rows, key=itemgetter(0, 1)):
            yield Fact(abs(stream_id), writer, tuple([from_cells(row[2:]) for row in group]))


#: Appended to the trimmed position: the oldest failover loss in which a span begins and not ends.
_LOST = """ UNION ALL (
    SELECT max(kept), floor FROM synrepl._lost_ranges
    WHERE stream = %s AND writer IN ('', %s) AND floor > %s AND floor <= %s
    GROUP BY incarnation, floor HAVING max(kept) < %s ORDER BY incarnation LIMIT 1
)"""
_GONE_OF_ALL = (
    "SELECT max(trimmed), NULL::bigint FROM synrepl._streams WHERE stream = %s AND %s = ''" + _LOST
)
_GONE_OF_WRITER = (
    "SELECT max(trimmed), NULL::bigint FROM synrepl._writers WHERE stream = %s AND writer = %s"
    + _LOST
)


def _copy_text(cell: object) -> str:
    """One cell in COPY's text format."""
    if cell is None:
        return r"\N"
    text = _text(cell)
    return text.translate(_COPY_ESCAPES) if _COPY_SPECIAL.search(text) else text


def _text(cell: object) -> str:
    """One cell as PostgreSQL reads it from text."""
    if isinstance(cell, str):
        return cell  # str() of an enumeration's member may be its name
    if isinstance(cell, bool):
        return "t" if cell else "f"
    return str(cell)


_COPY_SPECIAL = re.compile(r"[\\\t\n\r]")
_COPY_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
