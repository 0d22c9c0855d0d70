"""Fills up rows of one stream to all columns of a read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from synrepl.pipeline.source.database.stream_schema import HEAD, STREAM
from synrepl.pipeline.source.read_schema import BAD_ROW
from synrepl.pipeline.source.reading.quarantine import QuarantinedRow


def widen_batches(
    found: Iterator[pa.RecordBatch | Sequence[QuarantinedRow]], schema: pa.Schema, stream: str
) -> Iterator[pa.RecordBatch]:
    """Fill up batches of one stream to all columns of the read: missing ones are null.

    :param found: batches, and rows with values that do not fit
    :param schema: the Arrow schema of all columns of the read
    """
    for batch in found:
        if not isinstance(batch, pa.RecordBatch):
            yield _widened(batch, schema, stream)
            continue
        if batch.schema.equals(schema):
            yield batch
            continue
        has = set(batch.schema.names)
        columns = [
            batch.column(field.name)
            if field.name in has
            else pa.repeat(stream, batch.num_rows)
            if field.name == STREAM.name
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _widened(rows: Sequence[QuarantinedRow], schema: pa.Schema, stream: str) -> pa.RecordBatch:
    known = {
        STREAM.name: [stream] * len(rows),
        HEAD[0].name: [row.stream_id for row in rows],
        HEAD[1].name: [row.row_no for row in rows],
        HEAD[2].name: [row.writer for row in rows],
        BAD_ROW[0].name: [row.reason for row in rows],
        BAD_ROW[1].name: [row.cells for row in rows],
    }
    columns = [
        pa.array(known[field.name], field.type)
        if field.name in known
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
