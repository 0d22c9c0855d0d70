"""The quarantine of a stream: a separate table for rows that do not fit their columns."""

from __future__ import annotations

from synrepl.pipeline.source.database.shape import Shape
from synrepl.streams.columns import Column, ColumnType

#: The reason why a row is quarantined, and its cells as a JSON object of strings.
QUARANTINE_CELLS = (
    Column("reason", ColumnType.TEXT, True),
    Column("cells", ColumnType.JSON, True),
)


def quarantine_shape(shape: Shape) -> Shape:
    """The columns of a stream's quarantine table."""
    return Shape(shape.stream, shape.counts_down, QUARANTINE_CELLS)
