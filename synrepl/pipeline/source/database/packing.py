"""Statements that give many rows as one: each column is aggregated into one value.

Decoding COPY costs a client some 90 ns for each cell of each row. The server concatenates the cells
of a column for less than it takes to send them one by one, and the client then needs a few
operations on arrays for thousands of cells, see :mod:`synrepl.pipeline.source.reading.unpacking`.

A group has the rows of :func:`rows_per_group` tokens. Memory is bounded on both sides, also if the
statistics are wrong: a group is cut off after :data:`ROW_FACTOR` times as many rows, and long texts
are left out. The client notices both, and reads those groups row by row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from synrepl.core.tokens import Range
from synrepl.pipeline.source.database.sql import HIGH, LOW, Scan, identifier
from synrepl.streams.columns import Column, ColumnType

#: Is between two texts. A text that contains it is noticed by the number of separators.
SEPARATOR = "\x01"

#: Aimed-at size of a group in bytes. It fits into the caches of a processor.
_GROUP_BYTES = 1 << 20

#: Least and greatest number of tokens in a group.
_LEAST_ROWS, _MOST_ROWS = 64, 8192

#: A group has at most this times as many rows as tokens.
ROW_FACTOR = 4

#: Maximum size of the texts of one column in a group with one row for each token, in bytes.
_COLUMN_BYTES = 64 << 20

#: Assumed size of a value without statistics, in bytes.
_UNKNOWN_WIDTH = 32

#: There have to be this many rows for each token, by the statistics; a group of few rows costs as
#: much as one of many.
_LEAST_DENSITY = 0.25

#: What a row says of its cells, beside them: one bit for each answer, in eight bytes.
_MOST_BITS = 63

_SEND = {ColumnType.BIGINT: "int8send", ColumnType.DOUBLE: "float8send"}


class CellBits(NamedTuple):
    """Where a group has what concerns all cells of a column: numbers of bits in the bytes of each row.

    :ivar given: whether the cell is among the values; None if all are
    :ivar true: whether a boolean is true
    """

    given: int | None
    true: int | None


class PackedScan(msgspec.Struct, frozen=True):
    """A statement that selects rows in groups, see :func:`packed`, and the bits of each column."""

    scan: Scan
    bits: list[CellBits]


def _cell_bits(columns: Iterable[Column]) -> list[CellBits]:
    """The bits of each column. Cells that are not given are NULL, and zero in columns that are not nullable."""
    numbers = itertools.count()
    return [
        CellBits(
            next(numbers) if column.nullable or column.name == _MOSTLY_ZERO else None,
            next(numbers) if column.type is ColumnType.BOOLEAN else None,
        )
        for column in columns
    ]


#: The rows of most facts have this number.
_MOSTLY_ZERO = "row_no"


def rows_per_group(
    columns: Sequence[Column], widths: Mapping[str, int], span: Range, rows: int
) -> int:
    """The number of tokens in a group; 0 if rows had better be read one by one.

    :param columns: what is read
    :param widths: average sizes of columns, in bytes, by name
    :param span: the tokens that are read
    :param rows: the expected number of rows
    """
    tokens = span.upto - span.after
    supported = all(column.type is not ColumnType.TEXT_ARRAY for column in columns)
    supported &= 2 * len(columns) <= _MOST_BITS
    width = sum(widths.get(column.name, _UNKNOWN_WIDTH) for column in columns)
    fitting = min(_MOST_ROWS, _GROUP_BYTES // max(1, width))
    if not columns or not supported or fitting < _LEAST_ROWS or rows < tokens * _LEAST_DENSITY:
        return 0
    return max(1, fitting * tokens // max(rows, tokens))


def packed(scan: Scan, columns: Sequence[Column], tokens: int) -> PackedScan:
    """A statement that selects the rows of ``scan`` in groups, one row for each.

    It selects the least and the greatest stream ID of the group, its number of rows (NULL if it was
    cut off), the :class:`CellBits` of its rows, and for each column all given cells in one value.

    :param scan: selects ``columns``, none of which is an array; IDs do not count down
    :param tokens: the number of tokens in a group
    """
    longest, most = _COLUMN_BYTES // tokens, tokens * ROW_FACTOR
    bits = _cell_bits(columns)
    answers = " | ".join(
        part for column, each in zip(columns, bits, strict=True) for part in _answers(column, each)
    )
    cells = [f"string_agg(int8send({answers or '0::bigint'}), ''::bytea)"]
    cells += [_cells(column, longest) for column in columns]
    last = f"least(parts.low + {tokens - 1}, {HIGH})"
    rows = scan.template.replace(LOW, "parts.low").replace(HIGH, last)
    grouped = Scan(
        f"SELECT parts.low, {last}, packed.* FROM"
        f" generate_series(CAST({LOW} AS bigint), {HIGH}, {tokens}) AS parts (low), LATERAL"
        f" (SELECT nullif(count(*), {most}), {', '.join(cells)} FROM ({rows} LIMIT {most}) AS cells)"
        " AS packed",
        scan.counts_down,
    )
    return PackedScan(grouped, bits)


def _answers(column: Column, bits: CellBits) -> Iterator[str]:
    name = identifier(column.name)
    if bits.given is not None:
        absent = f"{name} IS NULL" if column.nullable else f"{name} = 0"
        yield f"CASE WHEN {absent} THEN 0 ELSE {1 << bits.given}::bigint END"
    if bits.true is not None:
        yield f"CASE WHEN {name} THEN {1 << bits.true}::bigint ELSE 0 END"


def _cells(column: Column, longest: int) -> str:
    name = identifier(column.name)
    if column.type is ColumnType.BOOLEAN:
        return "NULL::text"
    if send := _SEND.get(column.type):
        given = f"nullif({name}, 0)" if column.name == _MOSTLY_ZERO else name
        return f"string_agg({send}({given}), ''::bytea)"
    separator = f"E'\\x{ord(SEPARATOR):02x}'"
    short = f"CASE WHEN octet_length({name}) > {longest} THEN {separator} ELSE {name} END"
    return f"string_agg({short}, {separator})"
