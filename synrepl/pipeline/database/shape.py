"""A stream as rows in columns."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.streams.columns import Column, ColumnType

#: What every row begins with: the fact's ID in the table, its place in the fact, who wrote it.
HEAD = (
    Column("stream_id", ColumnType.BIGINT, False),
    Column("row_no", ColumnType.BIGINT, False),
    Column("writer", ColumnType.TEXT, False),
)

#: A row of which no value is read: the cells are a JSON object of text, by column.
RAW = (*HEAD, Column("cells", ColumnType.TEXT, False))


@dataclass(frozen=True, slots=True)
class Shape:
    """What a reader has to know of one stream.

    :ivar counts_down: stream IDs are −1, −2, … (the token is the ID negated)
    :ivar cells: the columns of a row, in order, without :data:`HEAD`
    """

    stream: str
    counts_down: bool
    cells: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in order."""
        return (*HEAD, *self.cells)
