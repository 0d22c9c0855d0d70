"""Rows of any stream, made from its columns."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from synrepl.streams.columns import ColumnType, row_columns
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
bigints = st.integers(-(2**63), 2**63 - 1)
doubles = st.floats(allow_nan=False, allow_infinity=False)
jsons = st.recursive(
    st.none() | st.booleans() | bigints | doubles | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)

CELLS: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.TEXT: text,
    ColumnType.BIGINT: bigints,
    ColumnType.BOOLEAN: st.booleans(),
    ColumnType.DOUBLE: doubles,
    ColumnType.JSON: jsons,
    ColumnType.TEXT_ARRAY: st.lists(text, max_size=3),
}


def rows_of(kind: type[Row]) -> st.SearchStrategy[Row]:
    """Rows of one class."""
    cells = {}
    for column in row_columns(kind):
        cell = CELLS[column.type]
        if column.name in ("keys", "affected_fields"):  # any JSON, but a list
            cell = st.lists(jsons, max_size=3)
        cells[column.name] = st.none() | cell if column.nullable else cell
    return st.builds(kind, **cells)


def rows(stream: Stream) -> st.SearchStrategy[Row]:
    """Rows of any kind of a stream."""
    return st.one_of([rows_of(kind) for kind in stream.kinds.values()])
