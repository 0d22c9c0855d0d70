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

#: There have to be this many rows for each token, by the statistics; a group of few rows costs as
#: much as one of many.
_LEAST_DENSITY = 0.25

#: What a row says of its cells, beside them: one bit for each answer, in eight bytes.
_MOST_BITS = 63

_SEND = {ColumnType.BIGINT: "int8send", ColumnType.DOUBLE: "float8send"}


class ColumnStatistics(NamedTuple):
    """What the server has found out about a column.

    :ivar width: the average size of a value, in bytes
    :ivar nulls: the fraction of cells that are NULL
    :ivar values: the number of different values; negative if it grows with the table
    """

    width: int = 32
    nulls: float = 0.5
    values: float = -1.0


_UNKNOWN = ColumnStatistics()

#: By name.
Statistics = Mapping[str, ColumnStatistics]


class CellBits(NamedTuple):
    """How a group says which cells of a column are given.

    :ivar given: the number of the bit in the answers of a row; None if all are given, or ``together``
    :ivar together: by the statistics, all are given or none; the group has their number
    :ivar true: the number of the bit that is the value of a boolean
    :ivar zero: the others are zero, not NULL
    """

    given: int | None
    together: bool
    true: int | None
    zero: bool


class PackedScan(msgspec.Struct, frozen=True):
    """A statement that selects rows in groups, see :func:`packed`, and the bits of each column."""

    scan: Scan
    bits: list[CellBits]


#: The rows of most facts have this number.
_MOSTLY_ZERO = "row_no"


def _cell_bits(columns: Iterable[Column], known: Statistics) -> Iterator[CellBits]:
    numbers = itertools.count()
    for column in columns:
        found, zero = known.get(column.name, _UNKNOWN), column.name == _MOSTLY_ZERO
        # A bit costs the server more than sending a text does.
        together = found.values == 1 if zero else column.nullable and found.nulls in (0.0, 1.0)
        bit = next(numbers) if (column.nullable or zero) and not together else None
        true = next(numbers) if column.type is ColumnType.BOOLEAN else None
        yield CellBits(bit, together, true, zero)


def rows_per_group(columns: Sequence[Column], known: Statistics, span: Range, rows: int) -> int:
    """The number of tokens in a group; 0 if rows had better be read one by one.

    :param columns: what is read
    :param known: what is known of them
    :param span: the tokens that are read
    :param rows: the expected number of rows
    """
    tokens = span.upto - span.after
    supported = all(column.type is not ColumnType.TEXT_ARRAY for column in columns)
    supported &= 2 * len(columns) <= _MOST_BITS
    width = sum(known.get(column.name, _UNKNOWN).width for column in columns)
    fitting = min(_MOST_ROWS, _GROUP_BYTES // max(1, width))
    if not columns or not supported or fitting < _LEAST_ROWS or rows < tokens * _LEAST_DENSITY:
        return 0
    return max(1, fitting * tokens // max(rows, tokens))


def packed(scan: Scan, columns: Sequence[Column], known: Statistics, tokens: int) -> PackedScan:
    """A statement that selects the rows of ``scan`` in groups, one row for each.

    It selects the least and the greatest stream ID of the group, its number of rows (NULL if it was
    cut off), the answers of its rows, see :class:`CellBits`, and for each column the number of given
    cells, if they are given together, and all of them in one value.

    :param scan: selects ``columns``, none of which is an array; IDs do not count down
    :param known: what is known of the columns; if it is wrong, groups are read row by row
    :param tokens: the number of tokens in a group
    """
    longest, most = _COLUMN_BYTES // tokens, tokens * ROW_FACTOR
    bits = list(_cell_bits(columns, known))
    answers = " | ".join(
        part for column, each in zip(columns, bits, strict=True) for part in _answers(column, each)
    )
    cells = [f"string_agg(int8send({answers}), ''::bytea)" if answers else "NULL::bytea"]
    for column, each in zip(columns, bits, strict=True):
        cells += [f"count({_given(column)})" if each.together else "NULL::bigint"]
        cells += [_cells(column, longest)]
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
    if bits.given is not None:
        yield f"CASE WHEN {_given(column)} IS NULL THEN 0 ELSE {1 << bits.given}::bigint END"
    if bits.true is not None:
        yield f"CASE WHEN {identifier(column.name)} THEN {1 << bits.true}::bigint ELSE 0 END"


def _given(column: Column) -> str:
    """The cell, or NULL if it is not given."""
    name = identifier(column.name)
    return f"nullif({name}, 0)" if column.name == _MOSTLY_ZERO else name


def _cells(column: Column, longest: int) -> str:
    name = identifier(column.name)
    if column.type is ColumnType.BOOLEAN:
        return "NULL::text"
    if send := _SEND.get(column.type):
        return f"string_agg({send}({_given(column)}), ''::bytea)"
    separator = f"E'\\x{ord(SEPARATOR):02x}'"
    short = f"CASE WHEN octet_length({name}) > {longest} THEN {separator} ELSE {name} END"
    return f"string_agg({short}, {separator})"
