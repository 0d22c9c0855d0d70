"""Where rows lie in large files: by room, so that a reader of one room skips most row groups.

Rows come in the order of their tokens. Of each :data:`WINDOW_BYTES` of them, those of a room are put next to each other, and
written as eight row groups, with the least and the greatest room ID in the footer. So memory is bounded,
and tokens and times of row groups still follow each other from window to window.

Events may be older by far than those around them, or claim to be. One of them in each row group would be enough to
make the extremes of times useless, so they are in row groups of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: The column by which rows are sorted.
ROOM = "room_id"

#: The column by whose values rows that are far from the others are kept apart, in ms since the epoch.
TIME = "origin_server_ts"

#: The column with a Bloom filter, by which readers that look for one value skip row groups.
EVENT = "event_id"

#: Rows that are sorted at a time: their size in bytes before they are encoded, and their number.
WINDOW_BYTES = 64 << 20
WINDOW_ROWS = 1 << 20

#: The number of row groups of a window.
GROUPS = 8

#: The fraction of row groups that a reader looks into in vain for a value that they do not have.
_BLOOM_ERRORS = 0.01

#: Rows are far from the others if they are so much before or after nine tenths of them, in ms.
_FAR_MS = 86_400_000


class RowGroups(NamedTuple):
    """Rows to write, in order.

    :ivar group_rows: the number of rows in a row group
    """

    rows: pa.Table
    group_rows: int


def has_rooms(schema: pa.Schema) -> bool:
    """True if rows with these columns can be sorted by room."""
    return _has(schema, ROOM, pa.string())


def _has(schema: pa.Schema, name: str, type_: pa.DataType) -> bool:
    """Whether there is such a column; in a declared stream, one of this name may have another type."""
    return name in schema.names and bool(schema.field(name).type.equals(type_))


def is_by_room(metadata: pq.FileMetaData) -> bool:
    """True if a file was written with :func:`writer_options`."""
    return metadata.num_row_groups > 0 and bool(metadata.row_group(0).sorting_columns)


def writer_options(schema: pa.Schema, group_rows: int) -> dict[str, Any]:
    """Options of a Parquet writer for sorted rows.

    :param group_rows: the expected number of rows in a row group
    """
    room = pq.SortingColumn(schema.get_field_index(ROOM))
    bloom = {"ndv": group_rows, "fpp": _BLOOM_ERRORS}
    return {
        "sorting_columns": [room],
        "bloom_filter_options": {EVENT: bloom} if _has(schema, EVENT, pa.string()) else None,
    }


def in_room_order(rows: pa.Table) -> Iterator[RowGroups]:
    """A window of rows, sorted by room; those of a room stay in their order."""
    size = _group_rows(rows)
    codes, far = _room_codes(rows.column(ROOM)), _far_apart(rows)
    for part in (np.flatnonzero(~far), np.flatnonzero(far)):
        if len(part):
            order = part[np.argsort(codes[part], kind="stable")]
            yield RowGroups(_taken(rows, pa.array(order)), size)


def _taken(rows: pa.Table, order: pa.Array) -> pa.Table:
    """Rows in another order. Taking them from many chunks would take five times as long as from one."""
    columns = [column.combine_chunks().take(order) for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _group_rows(rows: pa.Table) -> int:
    """The number of rows in a row group: an eighth of those of a full window."""
    full = max(len(rows) / WINDOW_ROWS, rows.nbytes / WINDOW_BYTES)
    size: int = math.ceil(len(rows) / full / GROUPS)
    return max(1, size)


def _room_codes(rooms: pa.ChunkedArray) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Numbers in the order of the room IDs, which are cheaper to sort, most if small; the greatest for NULL."""
    encoded = rooms.combine_chunks().dictionary_encode()
    ranks = pc.rank(encoded.dictionary).to_numpy()
    codes = np.append(ranks, len(ranks) + 1).astype(np.min_scalar_type(len(ranks) + 1))
    found: npt.NDArray[np.unsignedinteger[Any]] = codes[
        encoded.indices.fill_null(len(ranks)).to_numpy()
    ]
    return found


def _far_apart(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows have a time that is far from those of nearly all others."""
    far = np.zeros(len(rows), np.bool_)
    if _has(rows.schema, TIME, pa.int64()) and rows.column(TIME).null_count < len(rows):
        column = rows.column(TIME)
        times = column.fill_null(0).to_numpy()
        there = column.is_valid().to_numpy()
        # Of the times themselves, as those between them may not fit into 64 bits.
        low, high = map(float, np.quantile(times[there], (0.05, 0.95), method="lower"))
        far = there & ((times < low - _FAR_MS) | (times > high + _FAR_MS))
    return far
