"""Reads facts from Synapse's tables, in their shape on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from synrepl.core.tokens import Range
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.feed import WRITER_COLUMN, TableFeed
from synrepl.storage.foreign.release import LocatedStream
from synrepl.storage.store import Page
from synrepl.storage.tables import id_bounds
from synrepl.streams.columns import KIND_COLUMN, ColumnType, columns
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec

#: The writer where no row and no position names one: the main process, then the only writer.
MAIN_PROCESS = "master"

#: The column with an unparsed row.
RAW_CELLS = "cells"


class ForeignFacts:
    """Reads the facts of one stream.

    A row that names no writer is returned for every requested writer, so that it may be
    read twice, but is never missed.
    """

    def __init__(self, stream: Stream, located: LocatedStream) -> None:
        self._stream = stream
        self._located = located
        self._codec = RowCodec(stream)
        self._columns = columns(stream)
        self._order = "DESC" if stream.counts_down else "ASC"
        # Distinct rows have no ctid, so they are ordered by their cells; JSON has no order, but
        # they never contain it.
        cells = [f'"{cell.name}"' for cell in self._columns if cell.type is not ColumnType.JSON]
        #: The order of a fact's rows in SQL: that of writing, which is also that on the wire.
        self.order = ", ".join(["part", "place", *cells])

    def page(
        self, txn: Transaction, span: Range, writer: str | None, unnamed: str, limit: int
    ) -> Page:
        """About ``limit`` rows of the facts in ``span``; a fact is never split.

        :param unnamed: the writer of rows that name none
        """
        rows = [] if span.empty else self._select(txn, span, writer, unnamed, limit + 1)
        split = abs(rows[-1][0]) if len(rows) > limit else None
        if split is not None:
            whole = [row for row in rows if abs(row[0]) != split]
            # One fact alone may be larger than the page.
            rows = whole or self._select(txn, Range(split - 1, split), writer, unnamed, None)
        facts = tuple(self._facts(rows))
        if split is None:
            return Page(facts, max(span), is_limited=False)  # an empty range ends where it begins
        upto = facts[-1].token
        return Page(facts, upto, is_limited=upto < span.upto)

    def _select(
        self, txn: Transaction, span: Range, writer: str | None, unnamed: str, limit: int | None
    ) -> list[tuple[Any, ...]]:
        low, high = id_bounds(self._stream, span)
        values = {"low": low, "high": high, "limit": limit, "writer": writer, "unnamed": unnamed}
        union = self.union(
            "%(low)s",
            "%(high)s",
            "%(unnamed)s",
            writer=None if writer is None else "%(writer)s",
            limit="%(limit)s",
        )
        txn.execute(
            f"SELECT * FROM ({union}) AS facts"
            f" ORDER BY stream_id {self._order}, {self.order}"
            " LIMIT %(limit)s",
            values,
        )
        return txn.fetchall()

    def union(
        self,
        low: str,
        high: str,
        unnamed: str,
        writer: str | None = None,
        limit: str | None = None,
        raw: bool = False,
    ) -> str:
        """A query for the rows of all tables between two stream IDs, unordered; parameters are SQL.

        The columns are stream_id, writer, part, place and those of the stream. Order a
        fact's rows by :attr:`order`.

        :param unnamed: the writer of rows that name none
        :param writer: only rows of this writer, and those that name none
        :param limit: maximum number of rows from each table
        :param raw: whether to return :data:`RAW_CELLS`, the columns of the table as a JSON
            object, instead of the stream's columns
        """
        return " UNION ALL ".join(
            f"({self._part(number, feed, low, high, unnamed, writer, limit, raw)})"
            for number, feed in enumerate(self._located.stream.feeds)
        )

    def _part(
        self,
        number: int,
        feed: TableFeed,
        low: str,
        high: str,
        unnamed: str,
        writer: str | None,
        limit: str | None,
        raw: bool,
    ) -> str:
        cells = {KIND_COLUMN: f"'{feed.kind}'", **feed.cells} if self._stream.tagged else feed.cells
        named = feed.table in self._located.with_writer
        wrote = f"coalesce(t.{WRITER_COLUMN}, {unnamed})" if named else unnamed
        of_writer = f" AND coalesce(t.{WRITER_COLUMN} = {writer}, true)" if named and writer else ""
        selected = "".join(
            f', CAST({cells.get(column.name, "NULL")} AS {column.type.sql}) AS "{column.name}"'
            for column in self._columns
        )
        if raw:
            selected = f", CAST(row_to_json(t.*) AS text) AS {RAW_CELLS}"
        joins = "".join(
            f" LEFT JOIN {table} AS {alias} ON {on}" for alias, (table, on) in feed.joins.items()
        )
        first = "" if limit is None else f" ORDER BY stream_id {self._order} LIMIT {limit}"
        return (
            f"SELECT {'DISTINCT ' if feed.distinct else ''}t.{feed.stream_id} AS stream_id,"
            f" CAST({wrote} AS text) AS writer, {number} AS part,"
            f" {'CAST(NULL AS tid)' if feed.distinct else 't.ctid'} AS place{selected}"
            f" FROM {feed.table} AS t{joins}"
            f" WHERE t.{feed.stream_id} BETWEEN {low} AND {high}{of_writer}{first}"
        )

    def _facts(self, rows: list[tuple[Any, ...]]) -> Iterator[Fact]:
        from_cells = self._codec.from_cells
        for (stream_id, writer), group in groupby(rows, key=itemgetter(0, 1)):
            yield Fact(abs(stream_id), writer, tuple([from_cells(row[4:]) for row in group]))
