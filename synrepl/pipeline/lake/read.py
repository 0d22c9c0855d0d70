"""The rows of one file of a table; for tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.pipeline.lake.land.shared_folder import in_task

#: Rows of a batch, where the reader does not say.
BATCH_ROWS = 32_768


def batches(
    path: Path, schema: pa.Schema, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows of a file as they come, in these columns; those that it lacks are null.

    :raises FolderNotShared: there is no such file on the machine of the task
    """
    with in_task(path, "read"):
        opened = pq.ParquetFile(path)
    with opened as file:
        there = set(file.schema_arrow.names)
        wanted = [name for name in schema.names if name in there]
        for batch in file.iter_batches(batch_rows, columns=wanted):
            yield _as(batch, schema)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    columns: list[Any] = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(batch.column(at).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
