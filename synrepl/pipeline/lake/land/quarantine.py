"""The quarantine of a stream: a separate table for rows that do not fit their columns."""

from __future__ import annotations

from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.streams.columns import Column, ColumnType

#: The reason why a row is quarantined, and its cells as a JSON object of strings.
QUARANTINE_CELLS = (
    Column("reason", ColumnType.TEXT, True),
    Column("cells", ColumnType.JSON, True),
)


def quarantine_schema(stream_schema: StreamSchema) -> StreamSchema:
    """The columns of a stream's quarantine table."""
    return StreamSchema(stream_schema.stream, stream_schema.counts_down, QUARANTINE_CELLS)
