"""Compares small streams in this process, without Spark: starting it takes seconds.

It only finds out whether both sides are equal. If they are not, or if it cannot tell, the comparison
with Spark says where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.core.tokens import MAX_TOKEN, Token
from synrepl.pipeline.lake.compact.compact import MergeInput, merge_files
from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.source_rows import Mask, read_chunks
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.plan.chunks import ScanChunk
from synrepl.pipeline.source.reading.schema import arrow_schema


def equal_rows(
    dsn: str,
    chunks: Sequence[ScanChunk],
    table: StreamTable,
    files: Sequence[DataFile],
    after: Token,
    upto: Token | None,
    mask: Mask,
    *,
    numbered: bool,
) -> int | None:
    """The number of rows if both sides have the same ones, in the order of their tokens; otherwise None.

    Rows are compared while they are read, so memory does not depend on their number. Values are
    equal if all their bytes are.

    :param chunks: select the source's rows
    :param files: have the lake's rows, and perhaps others
    :param after: the lake's rows are above this token
    :param upto: and at or below this one; None for no limit
    :param numbered: rows have the same ``row_no`` on both sides
    :raises ReadingAway: :raises ReadFailed: :raises Trimmed:
    """
    stream_schema = table.stream_schema
    source = _RowQueue(read_chunks(dsn, chunks, stream_schema, mask))
    lake = _RowQueue(_lake_rows(table, files, after, MAX_TOKEN if upto is None else upto))
    rows = 0
    last: tuple[int, int] | None = None
    while source.more() and lake.more():
        size = min(source.held_rows, lake.held_rows)
        one, two = source.taken(size), lake.taken(size)
        if not _equal(one, two, stream_schema, numbered):
            return None
        if not numbered:
            # The same row twice, where the source has two rows of one fact.
            found = _places(two)
            if any(a == b for a, b in zip([last, *found], found, strict=False)):
                return None
            last = found[-1]
        rows += size
    return None if source.more() or lake.more() else rows


class _RowQueue:
    """Batches of rows, of which any number can be taken at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: pa.RecordBatch | None = None

    @property
    def held_rows(self) -> int:
        """The number of rows that can be taken at once; 0 before :meth:`more`."""
        return 0 if self._held is None else int(self._held.num_rows)

    def more(self) -> bool:
        """Make sure that rows are held; False if there are no more."""
        while not self.held_rows:
            self._held = next(self._batches, None)
            if self._held is None:
                return False
        return True

    def taken(self, rows: int) -> pa.RecordBatch:
        """Take some of the rows held."""
        assert self._held is not None
        found, self._held = self._held.slice(0, rows), self._held.slice(rows)
        return found


def _lake_rows(
    table: StreamTable, files: Sequence[DataFile], after: Token, upto: Token
) -> Iterator[pa.RecordBatch]:
    stream_schema = table.stream_schema
    schema = arrow_schema(column._replace(nullable=True) for column in stream_schema.columns)
    sources = [
        MergeInput(table.path_of(file), -file.high if stream_schema.counts_down else file.low)
        for file in files
    ]
    for batch in merge_files(sources, schema):
        tokens = batch.column("stream_id")
        tokens = pc.negate(tokens) if stream_schema.counts_down else tokens
        yield batch.filter(pc.and_(pc.greater(tokens, after), pc.less_equal(tokens, upto)))


def _places(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    ids, numbers = (batch.column(name).to_pylist() for name in ("stream_id", "row_no"))
    return list(zip(ids, numbers, strict=True))


def _equal(
    one: pa.RecordBatch, two: pa.RecordBatch, stream_schema: StreamSchema, numbered: bool
) -> bool:
    return all(
        _exact(one.column(column.name)).equals(_exact(two.column(column.name)))
        for column in stream_schema.columns
        if numbered or column.name != "row_no"
    )


def _exact(column: Any) -> Any:
    # As a number, 0 equals -0, and NaN nothing.
    return column.view(pa.int64()) if pa.types.is_float64(column.type) else column
