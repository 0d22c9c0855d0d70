"""Validates rows against the columns of a stream, column by column rather than row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.sink.target import SinkTarget
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.streams.columns import KIND_COLUMN, Column, ColumnType

#: A boolean per row that is true for invalid rows, and the reason.
Problem = tuple[Any, str]

_LEAST, _GREATEST = -(2**63), 2**63 - 1
_MAX_ROW_NO = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ValidatedBatch:
    """A batch, divided into valid and invalid rows.

    :ivar good: the valid rows, in the types of the stream's columns
    :ivar bad: the invalid rows, unchanged
    :ivar reasons: the reason for each invalid row
    """

    good: pa.RecordBatch
    bad: pa.RecordBatch
    reasons: list[str]


def validate(batch: pa.RecordBatch, target: SinkTarget) -> ValidatedBatch:
    """Find the rows that fit the target's columns. The batch has these columns by name."""
    columns: list[Any] = []
    reasons = np.full(batch.num_rows, None, dtype=object)
    schema = arrow_schema(target.columns)
    for column, field in zip(target.columns, schema, strict=True):
        array = batch.column(column.name)
        if not column.nullable and array.null_count:
            _note(reasons, pc.is_null(array), f"column {column.name!r} may not be NULL")
        array = _narrowed(array, column, reasons)
        for mask, why in _problems(array, column, target):
            _note(reasons, mask, f"column {column.name!r} {why}")
        columns.append(array if array.type.equals(field.type) else array.cast(field.type))
    loose = pa.schema([field.with_nullable(True) for field in schema])
    typed = pa.RecordBatch.from_arrays(columns, schema=loose)
    bad = np.array([reason is not None for reason in reasons], dtype=bool)
    if not bad.any():
        return ValidatedBatch(typed, batch.slice(0, 0), [])
    return ValidatedBatch(
        typed.filter(pa.array(~bad)),
        batch.filter(pa.array(bad)),
        [str(reason) for reason in reasons[bad]],
    )


def _note(reasons: Any, mask: Any, why: str) -> None:
    """Set the reason of the rows in ``mask`` that have none yet."""
    found = np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), dtype=bool)
    if found.any():
        for row in np.flatnonzero(found):
            if reasons[row] is None:
                reasons[row] = why


def _narrowed(array: Any, column: Column, reasons: Any) -> Any:
    """Decimals with the numbers replaced by null that do not fit a bigint."""
    if column.type is not ColumnType.BIGINT or not pa.types.is_decimal(array.type):
        return array
    wide = array.cast(pa.decimal128(38, 0))
    limits = pa.array([_LEAST, _GREATEST], pa.decimal128(38, 0))
    outside = pc.or_(pc.less(wide, limits[0]), pc.greater(wide, limits[1]))
    _note(reasons, outside, f"column {column.name!r} has 64 bits, the number has more")
    return pc.if_else(outside, pa.scalar(None, wide.type), wide)


def _problems(array: Any, column: Column, target: SinkTarget) -> Iterator[Problem]:
    if column.name == "row_no":
        yield _outside(array, 0, _MAX_ROW_NO), "is no row's number"
    elif column.name == KIND_COLUMN and target.kinds is not None:
        known = pa.array(target.kinds, array.type)
        yield (
            pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, known))),
            f"must be one of {', '.join(target.kinds)}",
        )
    elif column.name == "writer":
        pattern = "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}$"
        yield pc.invert(pc.match_substring_regex(array, pattern)), "is no writer's name"
    elif column.type in _CHECKS:
        yield from _CHECKS[column.type](array)


def _outside(array: Any, least: int, greatest: int) -> Any:
    return pc.or_(pc.less(array, least), pc.greater(array, greatest))


def _text(array: Any) -> Iterator[Problem]:
    yield pc.match_substring(array, "\0"), "holds the character NUL, which Postgres does not take"


def _double(array: Any) -> Iterator[Problem]:
    if pa.types.is_floating(array.type):
        yield pc.invert(pc.is_finite(array)), "is no finite number, and JSON has no other"


def _json(array: Any) -> Iterator[Problem]:
    decode = msgspec.json.decode
    bad = np.zeros(len(array), dtype=bool)
    for row, text in enumerate(array.to_pylist()):
        if text is not None:
            try:
                decode(text)
            except (msgspec.DecodeError, RecursionError, ValueError):
                bad[row] = True
    yield pa.array(bad), "is no JSON text"


def _texts(array: Any) -> Iterator[Problem]:
    elements, rows = array.flatten(), pc.list_parent_indices(array)
    for mask, why in (
        (pc.is_null(elements), "has an element that is NULL"),
        (pc.match_substring(elements, "\0"), "holds the character NUL"),
    ):
        found = rows.filter(pc.fill_null(mask, False)).to_numpy(zero_copy_only=False)
        bad = np.zeros(len(array), dtype=bool)
        bad[found] = True
        yield pa.array(bad), why


_CHECKS: dict[ColumnType, Callable[[Any], Iterator[Problem]]] = {
    ColumnType.TEXT: _text,
    ColumnType.DOUBLE: _double,
    ColumnType.JSON: _json,
    ColumnType.TEXT_ARRAY: _texts,
}
