"""Columns that a lake's table has besides those of its stream: computed from these whenever a file is written.

Whole events say when they were sent in milliseconds. Their tables have the time as a timestamp, too, so a condition on it
skips files and row groups. It follows the milliseconds through landing, compaction, erasure and repair, because
:class:`.FileWriter` computes it of the rows that it is given; it is never copied from a file, compared with the
database, or written back to one.

Tables of earlier releases do not have these columns, and do not get them. Their files lack the values, so rows would be
missing from the results of a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.pipeline.source.database.whole_events import has_whole_events
from synrepl.pipeline.source.reading.schema import arrow_schema

#: By name, the column of milliseconds since the epoch from which a column of timestamps is computed.
SOURCES = {"origin_server_time": "origin_server_ts"}

#: The times that a timestamp can have, in ms since the epoch: at least the first, and below the second. Other servers send
#: any number, and one row that a reader cannot represent fails its whole query. Nanoseconds in 64 bits (pandas) end in
#: 2262, Spark before 4.0 refuses files with times before 1900, and Python has no years before 1 or after 9999.
FIRST_MS = int(datetime(1900, 1, 1, tzinfo=UTC).timestamp()) * 1000
END_MS = int(datetime(2262, 1, 1, tzinfo=UTC).timestamp()) * 1000

#: The type of timestamps, in Arrow and in Parquet.
TIMESTAMP = pa.timestamp("us", "UTC")


def computed_columns(stream_schema: StreamSchema) -> tuple[str, ...]:
    """The names of the computed columns of a new table for a stream."""
    if not has_whole_events(stream_schema):
        return ()
    own = {column.name for column in stream_schema.columns}
    return tuple(name for name, of in SOURCES.items() if of in own and name not in own)


def file_schema(stream_schema: StreamSchema) -> pa.Schema:
    """The Arrow schema of a table's files: all columns are nullable but those of the head."""
    cells = [column._replace(nullable=True) for column in stream_schema.cells]
    computed = [pa.field(name, TIMESTAMP) for name in stream_schema.computed]
    return pa.schema([*arrow_schema((*HEAD, *cells)), *computed])


def as_in_file(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of a file, of which the computed ones are computed.

    :param batch: rows with at least the others
    :param schema: of the file
    """
    return pa.RecordBatch.from_arrays([*_cells(batch, schema)], schema=schema)


def _cells(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.Array]:
    for field in schema:
        if field.name in SOURCES and field.type == TIMESTAMP:
            yield _timestamps(batch.column(SOURCES[field.name]))
        else:
            yield batch.column(field.name)


def _timestamps(ms: pa.Array) -> pa.Array:
    has_time = pc.and_(pc.greater_equal(ms, FIRST_MS), pc.less(ms, END_MS))
    in_range = pc.if_else(has_time, ms, pa.scalar(None, pa.int64()))
    return pc.multiply(in_range, 1000).cast(TIMESTAMP)
