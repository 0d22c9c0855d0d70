"""SQL text without parameters, because the ADBC reader takes none."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.errors import InputError
from synrepl.pipeline.source.database.shape import Shape
from synrepl.pipeline.source.plan.windows import Windows
from synrepl.storage.database import Transaction
from synrepl.streams.columns import Column, ColumnType


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
    """A column as the reader wants it: JSON is text to it."""
    name = f"{source}{identifier(column.name)}"
    if column.type is ColumnType.JSON:
        return f"CAST({name} AS text) AS {identifier(column.name)}"
    if column.name == "row_no":
        return f"CAST({name} AS bigint) AS {identifier(column.name)}"
    return name


def selected(shape: Shape, columns: Sequence[str]) -> str:
    """The select list for some of a stream's columns."""
    by_name = {column.name: column for column in shape.columns}
    return ", ".join(cell(by_name[name]) for name in columns) or "1"


def in_windows(shape: Shape, windows: Windows, ids: tuple[str, str]) -> str:
    """The condition that a row of ``stream_id`` and ``writer`` is wanted.

    :param ids: the least and the greatest stream ID
    """
    low, high = ids
    # Spelled on the ID itself, so that an index serves.
    whole = f"stream_id BETWEEN {low} AND {high}"
    if windows.agreed:
        return whole
    token = "-stream_id" if shape.counts_down else "stream_id"
    each = "".join(
        f" WHEN {literal(writer)} THEN {token} > {span.after} AND {token} <= {span.upto}"
        for writer, span in windows.writers.items()
    )
    others = f"{token} > {windows.others.after} AND {token} <= {windows.others.upto}"
    return f"{whole} AND CASE writer{each} ELSE {others} END" if each else f"{whole} AND {others}"


def readable(text: str) -> str:
    """Text as it is, or where the database does not know in which encoding it is, its bytes escaped."""
    return (
        "CASE WHEN current_setting('server_encoding') = 'SQL_ASCII'"
        f" THEN encode(convert_to({text}, 'SQL_ASCII'), 'escape') ELSE {text} END"
    )


def in_order(shape: Shape) -> str:
    """The order of tokens, and within a fact that of its rows; of what is called ``rows``.

    By its own columns: a bare name would be what is selected under it, a cast of ``row_no``, whose
    order no index has, and all rows would be sorted again.
    """
    return f"ORDER BY rows.stream_id{' DESC' if shape.counts_down else ''}, rows.row_no"


def planned_rows(txn: Transaction, statement: str) -> int:
    """The estimated number of rows of ``statement``; as accurate as the table statistics."""
    plan = txn.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchone()[0]
    return int(plan[0]["Plan"]["Plan Rows"])
