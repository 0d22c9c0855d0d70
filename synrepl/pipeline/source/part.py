"""One task's share, and its rows, in whatever process the task runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from synrepl.pipeline.source.errors import MustReland
from synrepl.pipeline.source.layout import widened
from synrepl.pipeline.source.plan.chunk import Chunk
from synrepl.pipeline.source.reading.read import Reader, ReadingAway
from synrepl.storage.store import Trimmed

#: Seconds between two attempts to begin.
_PAUSE_S = 0.5


class Part(InputPartition):
    """A chunk, and which columns its statement selects."""

    def __init__(self, chunk: Chunk, columns: tuple[str, ...]) -> None:
        super().__init__(None)
        self.chunk = chunk
        self.columns = columns


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads parts. Made by the planner, pickled, and used by tasks.

    :ivar schema: of all columns
    :ivar patience_s: how long a database that is away is tried again, in seconds
    """

    dsn: str
    schema: pa.Schema
    patience_s: float

    def rows(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, batch by batch; of what is no part of ours, none.

        :raises ReadingAway: :raises ReadFailed: :raises MustReland:
        """
        if not isinstance(part, Part):  # Spark makes one up when there are none
            return
        give_up = time.monotonic() + self.patience_s
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
                # What has been given cannot be taken back: then the task has to run again.
                if given or time.monotonic() + _PAUSE_S > give_up:
                    raise
            time.sleep(_PAUSE_S)

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        has = set(self.schema.names)
        wanted = pa.schema(
            [
                self.schema.field(name) if name in has else pa.field(name, pa.int64(), False)
                for name in part.columns
            ]
        )
        batches = Reader(self.dsn).batches(part.chunk, wanted)
        return widened(batches, self.schema, part.chunk.stream)
