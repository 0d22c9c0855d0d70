"""The columns of a stream's rows."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.streams.columns import Column, ColumnType

#: The first columns of every row: the stream ID of its fact, its index in the fact, the writer.
HEAD = (
    Column("stream_id", ColumnType.BIGINT, False),
    Column("row_no", ColumnType.BIGINT, False),
    Column("writer", ColumnType.TEXT, False),
)

#: A row whose values are not decoded: the cells are a JSON object of strings, by column.
RAW = (*HEAD, Column("cells", ColumnType.TEXT, False))


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """The schema of one stream.

    :ivar counts_down: stream IDs are −1, −2, … (the token is the ID negated)
    :ivar cells: the stream's own columns, in order, after :data:`HEAD`
    """

    stream: str
    counts_down: bool
    cells: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in order."""
        return (*HEAD, *self.cells)


#: The reason why a row is quarantined, and its cells as a JSON object of strings.
QUARANTINE_CELLS = (
    Column("reason", ColumnType.TEXT, True),
    Column("cells", ColumnType.JSON, True),
)


def quarantine_schema(stream_schema: StreamSchema) -> StreamSchema:
    """The columns of a stream's quarantine table."""
    return StreamSchema(stream_schema.stream, stream_schema.counts_down, QUARANTINE_CELLS)
