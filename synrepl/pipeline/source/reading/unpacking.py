"""Takes groups of rows apart, as :mod:`synrepl.pipeline.source.database.packing` packs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from synrepl.pipeline.source.database.packing import SEPARATOR, CellForm, PackedColumn

#: By the ID of the type: types themselves are looked up as slowly as thousands of cells are unpacked.
_NUMBERS = {pa.int64().id: ">i8", pa.float64().id: ">f8"}
_SEPARATOR = SEPARATOR.encode()

#: What comes before the cells: stream IDs, the number of rows, that of odd ones, and answers.
_HEADS = 5

#: Which rows have a cell; None if all have.
_Given = npt.NDArray[np.bool_] | None


def group_span(packed: pa.RecordBatch, at: int) -> tuple[int, int, int | None]:
    """The least and the greatest stream ID of a group, and its number of rows; None if it was cut off."""
    low, high, rows = (packed.column(n)[at].as_py() for n in range(3))
    return low, high, rows


def unpack(
    packed: pa.RecordBatch, at: int, schema: pa.Schema, columns: Sequence[PackedColumn]
) -> pa.RecordBatch | None:
    """The rows of a group, or None: they have to be read in another way.

    That is so if the group was cut off, if the texts of a column cannot be told apart, if one was
    left out as too long, or if the statistics of a column were wrong.

    :param packed: groups, one in each row
    :param at: the number of the group, which is not empty
    :param schema: of the columns
    """
    low, rows, odd = (packed.column(n)[at].as_py() for n in (0, 2, 3))
    if rows is None or odd:
        return None
    answered = _value(packed.column(4), at)
    answers: Any = None if answered is None else np.frombuffer(answered, ">i8").astype("<i8")

    def answer(bit: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (answers & (1 << bit)) != 0
        return found

    found: list[pa.Array] = []
    values = iter(range(_HEADS, packed.num_columns))
    for field, each in zip(schema, columns, strict=True):
        given = None if each.given is None else answer(each.given)
        if given is not None and given.all():
            given = None
        if each.form is CellForm.SAME:
            column = pa.repeat(pa.scalar(each.value, field.type), rows)
        elif each.form is CellForm.OFFSETS:
            column = pa.array((answers >> each.bit) + low)
        elif each.form is CellForm.BITS:
            column = _flags(answer(each.bit), given)
        else:
            cells = _value(packed.column(next(values)), at)
            if cells is None and (given is None or given.any()):
                return None  # all texts have another length
            if kind := _NUMBERS.get(field.type.id):
                column = _numbers(cells, rows, given, kind, each.zero)
            elif cells is None:
                column = pa.nulls(rows, field.type)
            else:
                column = _texts(cells, rows, given, each.length)
        if column is None:
            return None
        found.append(column)
    return pa.RecordBatch.from_arrays(found, schema=schema)


def _value(column: pa.Array, at: int) -> pa.Buffer | None:
    """A value of texts or bytes, which may be long, and would be copied as a scalar; None for NULL."""
    valid, offsets, data = column.buffers()
    place = column.offset + at
    if valid is not None and not valid[place // 8] >> place % 8 & 1:
        return None
    begin, end = np.frombuffer(offsets, np.int32, 2, place * 4).tolist()
    return pa.py_buffer(b"") if data is None else data.slice(begin, end - begin)


def _flags(true: npt.NDArray[np.bool_], given: _Given) -> pa.Array:
    buffers = [None if given is None else _bitmap(given), _bitmap(true)]
    return pa.BooleanArray.from_buffers(pa.bool_(), len(true), buffers)


def _bitmap(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _numbers(cells: Any, rows: int, given: _Given, kind: str, zero: bool) -> pa.Array:
    native = kind.replace(">", "<")
    if given is None:
        return pa.array(np.frombuffer(cells, kind).astype(native))
    numbers = np.zeros(rows, native)
    if cells is not None:
        numbers[given] = np.frombuffer(cells, kind)
    return pa.array(numbers, mask=None if zero else ~given)


def _texts(cells: pa.Buffer, rows: int, given: _Given, length: int | None) -> pa.Array | None:
    texts = rows if given is None else int(np.count_nonzero(given))
    if length is None:
        apart = _one_length(cells, texts) or _divided(cells, texts)
    else:
        apart = (_offsets(texts, length), cells) if cells.size == texts * length else None
    if apart is None:
        return None
    offsets, data = apart
    valid: Any = None
    if given is not None:
        # A NULL ends where it begins.
        offsets = offsets[np.concatenate(([0], np.cumsum(given)))]
        valid = _bitmap(given)
    return pa.StringArray.from_buffers(
        rows, pa.py_buffer(offsets), pa.py_buffer(data), valid, rows - texts
    )


#: Where each text begins, and the last ends, and the texts without separators.
_Apart = tuple[npt.NDArray[np.int32], Any]


def _one_length(cells: pa.Buffer, texts: int) -> _Apart | None:
    """Texts that have the same length, as hashes have: three times as fast."""
    width, rest = divmod(cells.size + 1, texts)
    letters = np.frombuffer(cells, np.uint8)
    if rest or not (letters[width - 1 :: width] == _SEPARATOR[0]).all():
        return None
    data = np.empty((texts, width - 1), np.uint8)
    data[:-1] = letters[: (texts - 1) * width].reshape(texts - 1, width)[:, :-1]
    data[-1] = letters[(texts - 1) * width :]
    if (data == _SEPARATOR[0]).any():
        return None
    return _offsets(texts, width - 1), data


def _offsets(texts: int, length: int) -> npt.NDArray[np.int32]:
    return np.arange(texts + 1, dtype=np.int32) * np.int32(length)


def _divided(cells: pa.Buffer, texts: int) -> _Apart | None:
    """Texts of any length; None if they cannot be told apart."""
    ends = np.flatnonzero(np.frombuffer(cells, np.uint8) == _SEPARATOR[0])
    if len(ends) != texts - 1:
        return None
    offsets = np.empty(texts + 1, np.int32)
    offsets[0], offsets[-1] = 0, cells.size - len(ends)
    offsets[1:-1] = ends - np.arange(len(ends))
    return offsets, cells.to_pybytes().replace(_SEPARATOR, b"")
