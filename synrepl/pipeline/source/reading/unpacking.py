"""Takes groups of rows apart, as :mod:`synrepl.pipeline.source.database.packing` packs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from synrepl.pipeline.source.database.packing import SEPARATOR, CellBits

_NUMBERS = {pa.int64(): ">i8", pa.float64(): ">f8"}
_SEPARATOR = SEPARATOR.encode()

#: What comes before the cells: stream IDs, the number of rows, and bits.
_HEADS = 4

#: Which rows have a cell; None if all have.
_Given = npt.NDArray[np.bool_] | None


def group_span(packed: pa.RecordBatch, at: int) -> tuple[int, int, int | None]:
    """The least and the greatest stream ID of a group, and its number of rows; None if it was cut off."""
    low, high, rows = (packed.column(n)[at].as_py() for n in range(3))
    return low, high, rows


def unpack(
    packed: pa.RecordBatch, at: int, schema: pa.Schema, bits: Sequence[CellBits]
) -> pa.RecordBatch | None:
    """The rows of a group, or None: they have to be read one by one.

    That is so if the group was cut off, if the texts of a column cannot be told apart, or if one was
    left out as too long.

    :param packed: groups, one in each row
    :param at: the number of the group, which is not empty
    :param schema: of the columns
    :param bits: of the columns
    """
    rows = packed.column(2)[at].as_py()
    if rows is None:
        return None
    answers = np.frombuffer(packed.column(3)[at].as_buffer(), ">i8")

    def answer(bit: int) -> npt.NDArray[np.bool_]:
        return (answers & (1 << bit)) != 0

    found: list[pa.Array] = []
    for number, (field, (given_bit, true_bit)) in enumerate(zip(schema, bits, strict=True)):
        cells = packed.column(_HEADS + number)[at].as_buffer()
        given = None if given_bit is None else answer(given_bit)
        if given is not None and given.all():
            given = None
        if true_bit is not None:
            column = pa.array(answer(true_bit), mask=None if given is None else ~given)
        elif kind := _NUMBERS.get(field.type):
            column = _numbers(cells, rows, given, kind, field.nullable)
        elif cells is None:
            column = pa.nulls(rows, field.type)
        else:
            column = _texts(cells, rows, given)
        if column is None:
            return None
        found.append(column)
    return pa.RecordBatch.from_arrays(found, schema=schema)


def _numbers(
    cells: pa.Buffer | None, rows: int, given: _Given, kind: str, nullable: bool
) -> pa.Array:
    native = kind.replace(">", "<")
    if given is None:
        return pa.array(np.frombuffer(cells, kind).astype(native))
    numbers = np.zeros(rows, native)
    if cells is not None:
        numbers[given] = np.frombuffer(cells, kind)
    return pa.array(numbers, mask=~given if nullable else None)


def _texts(cells: pa.Buffer, rows: int, given: _Given) -> pa.Array | None:
    ends = np.flatnonzero(np.frombuffer(cells, np.uint8) == _SEPARATOR[0])
    texts = rows if given is None else np.count_nonzero(given)
    if len(ends) != texts - 1:
        return None
    offsets = np.empty(texts + 1, np.int32)
    offsets[0], offsets[-1] = 0, cells.size - len(ends)
    offsets[1:-1] = ends - np.arange(len(ends))
    valid: Any = None
    if given is not None:
        # A NULL ends where it begins.
        offsets = offsets[np.concatenate(([0], np.cumsum(given)))]
        valid = pa.py_buffer(np.packbits(given, bitorder="little"))
    data = cells.to_pybytes().replace(_SEPARATOR, b"")
    return pa.StringArray.from_buffers(
        rows, pa.py_buffer(offsets), pa.py_buffer(data), valid, rows - texts
    )
