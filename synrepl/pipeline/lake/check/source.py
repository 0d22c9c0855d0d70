"""Rows of the database that a lake is compared with, as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from synrepl.core.tokens import Range
from synrepl.pipeline.source.database.shape import Shape
from synrepl.pipeline.source.plan.chunk import Chunk
from synrepl.pipeline.source.reading.quarantine import Quarantined, read_or_quarantine
from synrepl.pipeline.source.reading.read import Reader
from synrepl.pipeline.source.reading.schema import arrow_schema, spark_schema

#: What the lake does to a stream's rows before it has them; runs in tasks, so it is pickled.
Mask = Callable[[pa.RecordBatch, Shape], pa.RecordBatch]


def as_they_are(batch: pa.RecordBatch, shape: Shape) -> pa.RecordBatch:
    """The mask of a lake in which nothing was erased."""
    return batch


def source_rows(
    spark: SparkSession, dsn: str, chunks: Sequence[Chunk], shape: Shape, mask: Mask
) -> DataFrame:
    """The rows of chunks, read by a task each whenever the DataFrame is used.

    Facts with values that do not fit are not among them: landing quarantines them, too.

    :param shape: the columns that the chunks select
    """
    schema = spark_schema(column._replace(nullable=True) for column in shape.columns)
    if not chunks:
        return spark.createDataFrame([], schema)
    tasks = spark.range(0, len(chunks), 1, len(chunks))
    return tasks.mapInArrow(_Tasks(dsn, tuple(chunks), shape, mask).rows, schema)


def narrowed(chunks: Sequence[Chunk], spans: Sequence[Range]) -> list[Chunk]:
    """The parts of chunks that are in some ranges, which do not touch."""
    found = []
    for chunk in chunks:
        for span in spans:
            part = Range(max(chunk.after, span.after), min(chunk.upto, span.upto))
            if not part.empty:
                found.append(chunk.within(*part))
    return found


@dataclass(frozen=True)
class _Tasks:
    dsn: str
    chunks: tuple[Chunk, ...]
    shape: Shape
    mask: Mask

    def rows(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = Reader(self.dsn, "check")
        schema = arrow_schema(column._replace(nullable=True) for column in self.shape.columns)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                chunk = self.chunks[number]
                for rows in read_or_quarantine(reader, chunk, schema, _leave_out):
                    yield self.mask(rows, self.shape)


def _leave_out(rows: Sequence[Quarantined]) -> None:
    """What is quarantined is in the lake's quarantine, not in its tables."""
