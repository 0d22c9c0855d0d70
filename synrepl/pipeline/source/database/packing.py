"""Statements that give many rows as one: each column is aggregated into one value.

Decoding COPY costs a client some 90 ns for each cell of each row. The server concatenates the cells
of a column for less than it takes to send them one by one, and the client then needs a few
operations on arrays for thousands of cells, see :mod:`synrepl.pipeline.source.reading.unpacking`.

A group has the rows of :func:`rows_per_group` tokens. Memory is bounded on both sides, also if the
statistics are wrong: a group is cut off after :data:`ROW_FACTOR` times as many rows, and long texts
are left out. The client notices both, and reads those groups row by row.

What statistics say of columns makes groups smaller: cells that are all the same are not sent, and texts of one
length have nothing between them. The server counts the rows for which that is wrong, or the client notices it,
and reads what is left of the chunk without relying on statistics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from synrepl.core.tokens import Range
from synrepl.pipeline.source.database.sql import HIGH, LOW, Scan, identifier, literal
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

#: What a row says in eight bytes, beside its cells: an answer in each bit, and above them its stream ID, as
#: the distance from the group's lowest.
_MOST_BITS = 63

#: Bits for the stream ID, which is less than ``_MOST_ROWS / _LEAST_DENSITY`` above the lowest.
_OFFSET_BITS = 16

#: Longest text that is compared with the cells of a column.
_LONGEST_CONSTANT = 200

_SEND = {ColumnType.BIGINT: "int8send", ColumnType.DOUBLE: "float8send"}

#: Types of which equal values have the same bytes.
_COMPARED = frozenset((ColumnType.TEXT, ColumnType.BIGINT, ColumnType.BOOLEAN))


class ColumnStatistics(NamedTuple):
    """What the server has found out about a column.

    :ivar width: the average size of a value, in bytes
    :ivar nulls: the fraction of cells that are NULL
    :ivar values: the number of different values; negative if it grows with the table
    :ivar only: the only value, as text, if ``values`` is 1 and it is known
    :ivar length: the length of all values as text, in bytes, if it is the same
    """

    width: int = 32
    nulls: float = 0.5
    values: float = -1.0
    only: str | None = None
    length: int | None = None


_UNKNOWN = ColumnStatistics()

#: By name.
Statistics = Mapping[str, ColumnStatistics]


class CellForm(StrEnum):
    """How a group has the cells of a column."""

    #: By the statistics, all have one value, or all are NULL. They are not sent.
    SAME = "same"
    #: Stream IDs, as distances from the lowest of the group, in the answers of rows.
    OFFSETS = "offsets"
    #: Booleans, in a bit of the answers.
    BITS = "bits"
    #: All of them in one value.
    VALUES = "values"


class PackedColumn(NamedTuple):
    """A column in a group.

    :ivar bit: the number of the bit of a boolean, or of the lowest bit of a distance
    :ivar given: the number of the bit that says whether a cell is given; None if all are
    :ivar zero: those that are not given are zero, not NULL
    :ivar value: the value of all cells, if it is the same
    :ivar length: of all texts, in bytes, if it is the same; then nothing is between them
    """

    form: CellForm
    bit: int = 0
    given: int | None = None
    zero: bool = False
    value: str | int | bool | None = None
    length: int | None = None


class PackedScan(msgspec.Struct, frozen=True):
    """A statement that selects rows in groups, see :func:`packed`, and the form of each column.

    :ivar careful: selects the same rows without relying on statistics; None if this one does
    """

    scan: Scan
    columns: list[PackedColumn]
    careful: PackedScan | None = None


#: The rows of most facts have this number.
_MOSTLY_ZERO = "row_no"

_STREAM_ID = "stream_id"


def _packed_columns(columns: Sequence[Column], known: Statistics) -> list[PackedColumn]:
    bits = itertools.count()
    found = []
    for column in columns:
        statistics, zero = known.get(column.name, _UNKNOWN), column.name == _MOSTLY_ZERO
        if column.name == _STREAM_ID:
            found.append(PackedColumn(CellForm.OFFSETS))
        elif (same := _same_value(column, statistics)) is not None:
            found.append(same)
        else:
            # A bit costs the server more than sending a text does.
            nullable = column.nullable and statistics.nulls > 0
            given = next(bits) if nullable or zero else None
            if column.type is ColumnType.BOOLEAN:
                found.append(PackedColumn(CellForm.BITS, next(bits), given))
            else:
                length = statistics.length if column.type is ColumnType.TEXT else None
                found.append(PackedColumn(CellForm.VALUES, 0, given, zero, length=length or None))
    above = next(bits)
    return [each._replace(bit=above) if each.form is CellForm.OFFSETS else each for each in found]


def _most_bits(column: Column) -> int:
    """The number of bits that a column needs if nothing is known of it."""
    is_given = column.nullable or column.name == _MOSTLY_ZERO
    return is_given + (column.type is ColumnType.BOOLEAN)


def _same_value(column: Column, known: ColumnStatistics) -> PackedColumn | None:
    """The column, if by the statistics all of its cells are the same."""
    text = known.only
    if column.nullable and known.nulls == 1:
        return PackedColumn(CellForm.SAME)
    if known.nulls > 0 or known.values != 1 or text is None or len(text) > _LONGEST_CONSTANT:
        return None
    if column.type not in _COMPARED:
        return None
    value: str | int | bool = text
    if column.type is ColumnType.BIGINT:
        value = int(text)
    elif column.type is ColumnType.BOOLEAN:
        value = text == "t"
    return PackedColumn(CellForm.SAME, value=value)


def rows_per_group(columns: Sequence[Column], known: Statistics, span: Range, rows: int) -> int:
    """The number of tokens in a group; 0 if rows had better be read one by one.

    :param columns: what is read
    :param known: what is known of them
    :param span: the tokens that are read
    :param rows: the expected number of rows
    """
    tokens = span.upto - span.after
    supported = all(column.type is not ColumnType.TEXT_ARRAY for column in columns)
    supported &= sum(map(_most_bits, columns)) <= _MOST_BITS - _OFFSET_BITS
    width = sum(known.get(column.name, _UNKNOWN).width for column in columns)
    fitting = min(_MOST_ROWS, _GROUP_BYTES // max(1, width))
    if not columns or not supported or fitting < _LEAST_ROWS or rows < tokens * _LEAST_DENSITY:
        return 0
    return max(1, fitting * tokens // max(rows, tokens))


def packed(scan: Scan, columns: Sequence[Column], known: Statistics, tokens: int) -> PackedScan:
    """A statement that selects the rows of ``scan`` in groups, one row for each.

    It selects the least and the greatest stream ID of the group, its number of rows (NULL if it was
    cut off), the number of those that are not as the statistics say, the answers of all rows, see
    :class:`PackedColumn`, and the given cells of each column with :attr:`CellForm.VALUES`, in one value.

    :param scan: selects ``columns``, none of which is an array; IDs do not count down
    :param known: what is known of the columns; may be wrong
    :param tokens: the number of tokens in a group
    """
    longest, most = _COLUMN_BYTES // tokens, tokens * ROW_FACTOR
    found = _packed_columns(columns, known)
    both = list(zip(columns, found, strict=True))
    odd = " OR ".join(part for column, each in both for part in _surprises(column, each))
    answers = " | ".join(part for column, each in both for part in _answers(column, each))
    cells = [
        f"count(*) FILTER (WHERE {odd})" if odd else "0::bigint",
        f"string_agg(int8send({answers}), ''::bytea)" if answers else "NULL::bytea",
        *(_cells(column, each, longest) for column, each in both if each.form is CellForm.VALUES),
    ]
    last = f"least(parts.low + {tokens - 1}, {HIGH})"
    rows = scan.template.replace(LOW, "parts.low").replace(HIGH, last)
    grouped = Scan(
        f"SELECT parts.low, {last}, packed.* FROM"
        f" generate_series(CAST({LOW} AS bigint), {HIGH}, {tokens}) AS parts (low), LATERAL"
        f" (SELECT nullif(count(*), {most}), {', '.join(cells)} FROM ({rows} LIMIT {most}) AS cells)"
        " AS packed",
        scan.counts_down,
    )
    return PackedScan(grouped, found, packed(scan, columns, {}, tokens) if known else None)


def _surprises(column: Column, packed: PackedColumn) -> Iterator[str]:
    """Conditions under which a row is not as the statistics say."""
    name, value = identifier(column.name), packed.value
    if packed.form is not CellForm.SAME:
        if column.nullable and packed.given is None:
            yield f"{name} IS NULL"
    elif value is None:
        yield f"{name} IS NOT NULL"
    elif isinstance(value, str):
        # Other collations may find texts equal that have other bytes.
        yield f'{name} IS DISTINCT FROM {literal(value)} COLLATE "C"'
    else:
        yield f"{name} IS DISTINCT FROM {value}"


def _answers(column: Column, packed: PackedColumn) -> Iterator[str]:
    if packed.given is not None:
        yield f"CASE WHEN {_given(column)} IS NULL THEN 0 ELSE {1 << packed.given}::bigint END"
    if packed.form is CellForm.BITS:
        yield f"CASE WHEN {identifier(column.name)} THEN {1 << packed.bit}::bigint ELSE 0 END"
    if packed.form is CellForm.OFFSETS:
        # In parentheses: Postgres shifts and combines bits from left to right.
        yield f"(({identifier(column.name)} - parts.low) << {packed.bit})"


def _given(column: Column) -> str:
    """The cell, or NULL if it is not given."""
    name = identifier(column.name)
    return f"nullif({name}, 0)" if column.name == _MOSTLY_ZERO else name


def _cells(column: Column, packed: PackedColumn, longest: int) -> str:
    name = identifier(column.name)
    if send := _SEND.get(column.type):
        return f"string_agg({send}({_given(column)}), ''::bytea)"
    if packed.length is not None:
        # The client finds others by the size of all of them together.
        return f"string_agg(CASE WHEN octet_length({name}) = {packed.length} THEN {name} END, NULL)"
    separator = f"E'\\x{ord(SEPARATOR):02x}'"
    short = f"CASE WHEN octet_length({name}) > {longest} THEN {separator} ELSE {name} END"
    return f"string_agg({short}, {separator})"
