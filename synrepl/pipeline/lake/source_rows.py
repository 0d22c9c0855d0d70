"""The source database's rows as a DataFrame, to compare a lake with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from synrepl.core.tokens import Range
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.plan.chunks import ScanChunk
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from synrepl.pipeline.source.reading.quarantine import QuarantinedRow, read_or_quarantine
from synrepl.pipeline.source.reading.schema import arrow_schema, spark_schema

#: Masks rows as landing does; runs in tasks, so it is pickled.
Mask = Callable[[pa.RecordBatch, StreamSchema], pa.RecordBatch]


def no_mask(batch: pa.RecordBatch, stream_schema: StreamSchema) -> pa.RecordBatch:
    """The mask of a lake from which nothing was erased."""
    return batch


def source_rows(
    spark: SparkSession,
    dsn: str,
    chunks: Sequence[ScanChunk],
    stream_schema: StreamSchema,
    mask: Mask,
) -> DataFrame:
    """The rows of chunks, read by one task each whenever the DataFrame is used.

    Facts with values that do not fit are left out, as landing quarantines them.

    :param stream_schema: the columns that the chunks select
    """
    schema = spark_schema(column._replace(nullable=True) for column in stream_schema.columns)
    if not chunks:
        return spark.createDataFrame([], schema)
    tasks = spark.range(0, len(chunks), 1, len(chunks))
    return tasks.mapInArrow(_ChunkTasks(dsn, tuple(chunks), stream_schema, mask).rows, schema)


def restrict_chunks(chunks: Sequence[ScanChunk], spans: Sequence[Range]) -> list[ScanChunk]:
    """The parts of chunks in some ranges, which may not be adjacent."""
    found = []
    for chunk in chunks:
        for span in spans:
            part = Range(max(chunk.after, span.after), min(chunk.upto, span.upto))
            if not part.empty:
                found.append(chunk.within(*part))
    return found


def read_chunks(
    dsn: str, chunks: Iterable[ScanChunk], stream_schema: StreamSchema, mask: Mask
) -> Iterator[pa.RecordBatch]:
    """Read the rows of chunks in this process, like :func:`source_rows`."""
    reader = ChunkReader(dsn, "check")
    schema = arrow_schema(column._replace(nullable=True) for column in stream_schema.columns)
    for chunk in chunks:
        for rows in read_or_quarantine(reader, chunk, schema, _leave_out):
            yield mask(rows, stream_schema)


@dataclass(frozen=True)
class _ChunkTasks:
    dsn: str
    chunks: tuple[ScanChunk, ...]
    stream_schema: StreamSchema
    mask: Mask

    def rows(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            mine = [self.chunks[number] for number in batch.column(0).to_pylist()]
            yield from read_chunks(self.dsn, mine, self.stream_schema, self.mask)


def _leave_out(rows: Sequence[QuarantinedRow]) -> None:
    """Ignore rows that are in the lake's quarantine, and not in its tables."""
