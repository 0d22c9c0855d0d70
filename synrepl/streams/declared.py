"""Streams that a user declares in a config file: the same thing as any other stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from synrepl.core import names
from synrepl.core.errors import InputError
from synrepl.streams.columns import ANNOTATIONS, KIND_COLUMN, parse_type
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Row

#: Columns that every stream's table has already, or that mean a row's kind.
RESERVED_COLUMNS = frozenset({"stream_id", "row_no", "writer", KIND_COLUMN})

#: Words that mean something else where a line or a command has a stream's name.
RESERVED_STREAMS = frozenset({"all", "batch", "now"})

#: Postgres would allow 1,600; nobody reads a row of so many cells.
MAX_COLUMNS = 200


class BadDeclaration(InputError):
    """stream {stream!r} cannot be declared like this: {reason}"""


def declare(name: str, columns: Mapping[str, str]) -> Stream:
    """Make a stream from its columns, as ``{"job_id": "bigint", "note": "text?"}``.

    The order of the columns is that of the cells on the wire. Nullable columns
    at the end may be left out of a row, so a stream can gain a column while
    older writers and readers still run.

    :raises BadName: for a name that is none
    :raises UnknownColumnType: for a type that is none
    :raises BadDeclaration: for reserved names, and for no or too many columns
    """
    names.stream_name(name)
    if name in RESERVED_STREAMS:
        raise BadDeclaration(stream=name, reason="the name is reserved, choose another")
    if not 0 < len(columns) <= MAX_COLUMNS:
        raise BadDeclaration(
            stream=name,
            reason=f"it has {len(columns)} columns, between 1 and {MAX_COLUMNS} are needed",
        )
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    may_be_absent = True
    for column, word in reversed(list(columns.items())):
        names.column_name(column)
        if column in RESERVED_COLUMNS:
            raise BadDeclaration(
                stream=name, reason=f"column name {column!r} is reserved, choose another"
            )
        type_, nullable = parse_type(word)
        annotation = ANNOTATIONS[type_]
        if nullable:
            annotation = annotation | None
        may_be_absent = may_be_absent and nullable
        fields.append((column, annotation, None) if may_be_absent else (column, annotation))
    row = msgspec.defstruct(_class_name(name), fields[::-1], bases=(Row,), module=__name__)
    return Stream(name, {UNTAGGED: cast(type[Row], row)})


def _class_name(stream: str) -> str:
    return "".join(word.capitalize() for word in stream.split("_")) + "Row"
