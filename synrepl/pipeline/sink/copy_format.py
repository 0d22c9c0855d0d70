"""Encodes Arrow record batches in the text format of COPY, column by column.

Not as CSV: servers before PostgreSQL 18 take a line ``\\.`` inside a quoted cell for the end of the
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Bytes of Arrow data that are encoded at a time. Bounds the memory, and keeps every intermediate
#: column below the limit of 32-bit offsets.
SLICE_BYTES = 16 << 20

#: Size of the pieces for the driver, which copies the rest of a piece each time it takes 8 KiB.
PIECE_BYTES = 32 << 10

#: Backslash first.
_ESCAPES = (("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"), ("\r", r"\r"))
_QUOTES = (("\\", r"\\"), ('"', r"\""))


def copy_text(batch: pa.RecordBatch, constant: int, ordinal: int) -> Iterator[bytes]:
    """Encode the rows of a batch, in small pieces.

    :param constant: the value of the first column in all rows
    :param ordinal: the value of the second column in the first row, from which it counts up
    """
    done = 0
    for part in _slices(batch):
        lines = _lines(part, constant, ordinal + done)
        done += part.num_rows
        text = memoryview(lines)
        for start in range(0, len(text), PIECE_BYTES):
            yield bytes(text[start : start + PIECE_BYTES])


def quarantine_text(
    batch: pa.RecordBatch, constant: int, reasons: Sequence[str]
) -> Iterator[bytes]:
    """Encode rows that do not fit as JSON, each with its reason."""
    encode = msgspec.json.Encoder(enc_hook=str).encode
    for row, reason in zip(batch.to_pylist(), reasons, strict=True):
        cells = (str(constant), _escaped_one(reason), _escaped_one(encode(row).decode()))
        yield ("\t".join(cells) + "\n").encode()


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # The nbytes of a slice counts only the slice.
    if batch.num_rows <= 1 or batch.nbytes <= SLICE_BYTES:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _slices(batch.slice(0, half))
    yield from _slices(batch.slice(half))


def _lines(batch: pa.RecordBatch, constant: int, ordinal: int) -> bytes:
    numbers = pa.array(np.arange(ordinal, ordinal + batch.num_rows, dtype=np.int64))
    cells = [pa.scalar(str(constant), pa.large_string()), numbers.cast(pa.large_string())]
    cells += [_cell(column) for column in batch.columns]
    rows = pc.binary_join_element_wise(
        *cells, pa.scalar("\t", pa.large_string()), null_handling="replace", null_replacement=r"\N"
    )
    offsets = pa.array([0, len(rows)], pa.int64())
    whole = pc.binary_join(
        pa.LargeListArray.from_arrays(offsets, rows), pa.scalar("\n", pa.large_string())
    )
    return bytes(whole[0].as_buffer()) + b"\n"


def _cell(column: Any) -> Any:
    if pa.types.is_list(column.type):
        return _escaped(_array_literals(column), _ESCAPES)
    if pa.types.is_string(column.type):
        return _escaped(column.cast(pa.large_string()), _ESCAPES)
    return column.cast(pa.large_string())


def _array_literals(column: Any) -> Any:
    quoted = _escaped(column.flatten().cast(pa.large_string()), _QUOTES)
    quote = pa.scalar('"', pa.large_string())
    quoted = pc.binary_join_element_wise(quote, quoted, quote, pa.scalar("", pa.large_string()))
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    joined = pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array(offsets), quoted), pa.scalar(",", pa.large_string())
    )
    braced = pc.binary_join_element_wise(
        pa.scalar("{", pa.large_string()),
        joined,
        pa.scalar("}", pa.large_string()),
        pa.scalar("", pa.large_string()),
    )
    return pc.if_else(column.is_valid(), braced, pa.scalar(None, pa.large_string()))


def _escaped(column: Any, escapes: Sequence[tuple[str, str]]) -> Any:
    for special, written in escapes:
        # Most columns contain none of them, and searching is faster than replacing.
        if pc.any(pc.match_substring(column, special)).as_py():
            column = pc.replace_substring(column, special, written)
    return column


def _escaped_one(text: str) -> str:
    for special, written in _ESCAPES:
        text = text.replace(special, written)
    return text
