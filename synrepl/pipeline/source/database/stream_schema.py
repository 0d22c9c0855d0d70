"""The columns of a stream's rows."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from synrepl.core.errors import InputError
from synrepl.streams.columns import Column, ColumnType

#: The first columns of every row: the stream ID of its fact, its index in the fact, the writer.
HEAD = (
    Column("stream_id", ColumnType.BIGINT, False),
    Column("row_no", ColumnType.BIGINT, False),
    Column("writer", ColumnType.TEXT, False),
)

#: The column with the stream's name, in reads of several streams.
STREAM = Column("stream", ColumnType.TEXT, False)

#: A row whose values are not decoded: the cells are a JSON object of strings, by column.
RAW = (*HEAD, Column("cells", ColumnType.TEXT, False))


class NoSuchColumn(InputError):
    """there is no column {column!r} in {where}{hint}; there are {known}"""


def no_such_column(name: str, where: str, known: Sequence[str]) -> NoSuchColumn:
    """The error for a column that does not exist, with the most similar name.

    :param where: the streams that were looked at
    """
    near = difflib.get_close_matches(name[:100], known, n=1)
    return NoSuchColumn(
        column=name[:100],
        where=where,
        hint=f"; did you mean {near[0]!r}?" if near else "",
        known=", ".join(known),
    )


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """The schema of one stream.

    :ivar counts_down: stream IDs are −1, −2, … (the token is the ID negated)
    :ivar cells: the stream's own columns, in order, after :data:`HEAD`
    :ivar computed: names of columns that are computed from these as files are written; only tables of a lake have some
    """

    stream: str
    counts_down: bool
    cells: tuple[Column, ...]
    computed: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the stream, in order."""
        return (*HEAD, *self.cells)


#: The reason why a row is quarantined, and its cells as a JSON object of strings.
QUARANTINE_CELLS = (
    Column("reason", ColumnType.TEXT, True),
    Column("cells", ColumnType.JSON, True),
)


def quarantine_schema(stream_schema: StreamSchema) -> StreamSchema:
    """The columns of a stream's quarantine table."""
    return StreamSchema(stream_schema.stream, stream_schema.counts_down, QUARANTINE_CELLS)
