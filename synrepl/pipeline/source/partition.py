"""Spark's input partitions: one chunk for one task, and reading its rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from synrepl.pipeline.source.errors import MustReland
from synrepl.pipeline.source.named_first import named_first
from synrepl.pipeline.source.plan.chunks import ScanChunk
from synrepl.pipeline.source.read_schema import BAD_ROW
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader, ReadingAway
from synrepl.pipeline.source.reading.quarantine import read_with_bad_rows
from synrepl.pipeline.source.widen import widen_batches
from synrepl.storage.store import Trimmed

#: Seconds between two attempts to begin reading.
_PAUSE_S = 0.5


class ChunkPartition(InputPartition):
    """A chunk, and the names of the columns that its statement selects."""

    def __init__(self, chunk: ScanChunk, columns: tuple[str, ...]) -> None:
        super().__init__(None)
        self.chunk = chunk
        self.columns = columns


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """Reads partitions. It is created on the driver, pickled, and used by tasks.

    :ivar schema: the Arrow schema of all columns of the read
    :ivar patience_s: how long to retry while the database is unreachable, in seconds
    """

    dsn: str
    schema: pa.Schema
    patience_s: float

    @named_first
    def rows(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, batch by batch; none for a partition that is not ours.

        :raises ReadingAway: :raises ReadFailed: :raises MustReland:
        """
        if not isinstance(part, ChunkPartition):  # Spark passes an empty one if there are none
            return
        deadline = time.monotonic() + self.patience_s
        while True:
            given = False
            try:
                for batch in self._batches(part):
                    given = True
                    yield batch
                return
            except Trimmed as error:
                raise MustReland(**error.facts) from None
            except ReadingAway:
                # Batches already yielded cannot be taken back, so then the task has to run again.
                if given or time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _batches(self, part: ChunkPartition) -> Iterator[pa.RecordBatch]:
        has = set(self.schema.names)
        wanted = pa.schema(
            [
                self.schema.field(name) if name in has else pa.field(name, pa.int64(), False)
                for name in part.columns
            ]
        )
        keeps_bad_rows = BAD_ROW[0].name in has
        read = read_with_bad_rows if keeps_bad_rows else ChunkReader.batches
        found = read(ChunkReader(self.dsn), part.chunk, wanted)
        return widen_batches(found, self.schema, part.chunk.stream)
