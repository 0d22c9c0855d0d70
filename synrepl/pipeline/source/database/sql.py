"""SQL text without parameters, because the ADBC reader takes none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from synrepl.core.errors import InputError
from synrepl.core.tokens import Range
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.storage.database import Transaction
from synrepl.streams.columns import Column, ColumnType

#: Number of rows that are fetched at a time, of some hundred bytes each.
FETCHED_ROWS = 10_000


class BadLiteral(InputError):
    """{value!r} cannot be written into a statement: text may not hold the character NUL"""


def literal(value: str) -> str:
    """A string constant; connections have ``standard_conforming_strings`` on."""
    if "\0" in value:
        raise BadLiteral(value=value[:100])
    return "'" + value.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A quoted name."""
    return '"' + name.replace('"', '""') + '"'


def cell(column: Column, source: str = "") -> str:
    """A column in a select list, with JSON cast to text and ``row_no`` to bigint for the reader."""
    name = f"{source}{identifier(column.name)}"
    if column.type is ColumnType.JSON:
        return f"CAST({name} AS text) AS {identifier(column.name)}"
    if column.name == "row_no":
        return f"CAST({name} AS bigint) AS {identifier(column.name)}"
    return name


def selected(stream_schema: StreamSchema, columns: Sequence[str]) -> str:
    """The select list for some of a stream's columns."""
    by_name = {column.name: column for column in stream_schema.columns}
    return ", ".join(cell(by_name[name]) for name in columns) or "1"


def in_ranges(stream_schema: StreamSchema, ranges: WriterRanges, ids: tuple[str, str]) -> str:
    """The condition that a row lies in the range of its writer.

    :param ids: the least and the greatest stream ID, as SQL
    """
    low, high = ids
    # On the column itself, so that an index can be used.
    whole = f"stream_id BETWEEN {low} AND {high}"
    if ranges.is_uniform:
        return whole
    token = "-stream_id" if stream_schema.counts_down else "stream_id"
    each = "".join(
        f" WHEN {literal(writer)} THEN {token} > {span.after} AND {token} <= {span.upto}"
        for writer, span in ranges.writers.items()
    )
    others = f"{token} > {ranges.others.after} AND {token} <= {ranges.others.upto}"
    return f"{whole} AND CASE writer{each} ELSE {others} END" if each else f"{whole} AND {others}"


def readable(text: str) -> str:
    """Text as it is; in a database without an encoding (SQL_ASCII), its bytes escaped."""
    return (
        "CASE WHEN current_setting('server_encoding') = 'SQL_ASCII'"
        f" THEN encode(convert_to({text}, 'SQL_ASCII'), 'escape') ELSE {text} END"
    )


def in_order(stream_schema: StreamSchema) -> str:
    """Order by token, and within a fact by row number; the table has to have the alias ``rows``.

    The columns are qualified because a bare ``row_no`` would name the selected cast, which no index
    is ordered by, so that all rows would be sorted again.
    """
    return f"ORDER BY rows.stream_id{' DESC' if stream_schema.counts_down else ''}, rows.row_no"


def counted_rows(statements: Mapping[str, str], limit: int) -> str:
    """A statement for the name of each stream, its number of rows, at most ``limit``, and the last one's token.

    :param statements: by stream, selects its stream IDs in the order of tokens; at least one
    """
    return " UNION ALL ".join(
        f"SELECT {literal(stream)}, count(*), max(abs(stream_id))"
        f" FROM ({statement} LIMIT {limit}) AS counted"
        for stream, statement in statements.items()
    )


def planned_rows(txn: Transaction, statement: str) -> int:
    """The estimated number of rows of ``statement``; as accurate as the table statistics."""
    plan = txn.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchone()[0]
    return int(plan[0]["Plan"]["Plan Rows"])


#: Placeholders of the least and the greatest stream ID. SQL cannot contain NUL, so no literal
#: contains them.
LOW, HIGH = "\0low\0", "\0high\0"


class Scan(msgspec.Struct, frozen=True):
    """A statement without parameters, with placeholders for the range of stream IDs.

    :ivar template: with :data:`LOW` and :data:`HIGH` in it
    :ivar counts_down: the stream's IDs are its tokens negated
    :ivar has_form: it selects one more column: the form in which ``json`` is to be shown
    """

    template: str
    counts_down: bool
    has_form: bool = False

    def between(self, span: Range) -> str:
        """The statement for a range of tokens."""
        low, high = ids(span, self.counts_down)
        return self.template.replace(LOW, low).replace(HIGH, high)


def ids(span: Range, counts_down: bool) -> tuple[str, str]:
    """The least and the greatest stream ID of a range of tokens, as SQL."""
    low, high = span.after + 1, span.upto
    return (str(-high), str(-low)) if counts_down else (str(low), str(high))


def fetched_in_parts(txn: Transaction, statement: str) -> Iterator[Any]:
    """The rows of a statement; few of them are in memory at once."""
    txn.execute(f"DECLARE in_parts NO SCROLL CURSOR FOR {statement}")
    while rows := txn.execute(f"FETCH {FETCHED_ROWS} FROM in_parts").fetchall():
        yield from rows
