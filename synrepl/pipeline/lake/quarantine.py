"""Rows that do not fit their columns: a table of their own for each stream that has some."""

from __future__ import annotations

from synrepl.pipeline.database.shape import Shape
from synrepl.streams.columns import Column, ColumnType

#: Why a row is here, and its cells as a JSON object of texts.
QUARANTINE_CELLS = (
    Column("reason", ColumnType.TEXT, True),
    Column("cells", ColumnType.JSON, True),
)


def quarantine_shape(shape: Shape) -> Shape:
    """The columns of the quarantine of a stream."""
    return Shape(shape.stream, shape.counts_down, QUARANTINE_CELLS)
