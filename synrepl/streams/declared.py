"""Streams that users declare in a configuration file. They work like any other stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import msgspec

from synrepl.core import names
from synrepl.core.errors import InputError
from synrepl.streams.columns import ANNOTATIONS, KIND_COLUMN, ColumnType, parse_type
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.effects import Effects, Invalidates, Marks, columns_key, entity
from synrepl.streams.row import Row

#: Column names that no stream may declare, and the reasons.
RESERVED_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("stream_id", "row_no", "writer"), "the table of every stream has it already"),
    KIND_COLUMN: "it distinguishes the kinds of rows",
    **dict.fromkeys(
        ("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"),
        "PostgreSQL has a system column of that name in every table",
    ),
}

#: Words with another meaning in place of a stream name in a line or command, and names
#: whose indexes or sequences would clash with those of internal tables.
RESERVED_STREAMS = frozenset({"all", "batch", "now"}) | {
    "dead_letters",
    "dead_letters_replay",
    "erased_subjects",
    "follower_leases",
    "followers",
    "handler_positions",
    "idempotency_keys",
    "incarnations",
    "job_batches",
    "lost_ranges",
    "migrations",
    "quarantine",
    "quarantine_number",
    "staging",
    "stream_marks",
    "streams",
    "writers",
    "writers_number",
}

#: Postgres allows 1,600.
MAX_COLUMNS = 200

_NO_SCALARS = frozenset({ColumnType.JSON, ColumnType.TEXT_ARRAY})


class BadDeclaration(InputError):
    """stream {stream!r} cannot be declared like this: {reason}"""

    @property
    def key(self) -> str:
        """The offending part of the declaration, such as ``columns.ctid``."""
        return str(self.facts["key"])


def declare(
    name: str,
    columns: Mapping[str, str],
    *,
    ephemeral: bool = False,
    invalidates: Mapping[str, Sequence[str]] = MappingProxyType({}),
    marks: Mapping[str, str] = MappingProxyType({}),
) -> Stream:
    """Make a stream from its columns, such as ``{"job_id": "bigint", "note": "text?"}``.

    The order of the columns is that of the cells on the wire. Nullable columns
    at the end may be left out of a row, so a stream can gain a column while
    older writers and readers still run.

    :param ephemeral: facts are trimmed once all named followers have processed them
    :param invalidates: by cache, the columns of a row that form the stale key; no
        columns mean the whole cache
    :param marks: by change index, the column that names the changed entity
    :raises BadName: a name is not valid
    :raises UnknownColumnType: a type is not known
    :raises BadDeclaration: a name is reserved, there are no or too many columns, or an
        effect uses a column that does not exist or cannot be part of a key
    """
    names.stream_name(name)
    if name in RESERVED_STREAMS:
        raise BadDeclaration(stream=name, key="name", reason="the name is reserved, choose another")
    if not 0 < len(columns) <= MAX_COLUMNS:
        raise BadDeclaration(
            stream=name,
            key="columns",
            reason=f"it has {len(columns)} columns, between 1 and {MAX_COLUMNS} are needed",
        )
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    may_be_absent = True
    for column, word in reversed(list(columns.items())):
        names.column_name(column)
        if column in RESERVED_COLUMNS:
            why = RESERVED_COLUMNS[column]
            raise BadDeclaration(
                stream=name,
                key=f"columns.{column}",
                reason=f"column name {column!r} is reserved ({why}), choose another",
            )
        type_, nullable = parse_type(word)
        annotation = ANNOTATIONS[type_]
        if nullable:
            annotation = annotation | None
        may_be_absent = may_be_absent and nullable
        fields.append((column, annotation, None) if may_be_absent else (column, annotation))
    row = msgspec.defstruct(_class_name(name), fields[::-1], bases=(Row,), module=__name__)
    effects: Effects = (
        *(
            Invalidates(cache, columns_key(*_keys(name, f"invalidates.{cache}", columns, used)))
            for cache, used in invalidates.items()
        ),
        *(
            Marks(index, entity(*_keys(name, f"marks.{index}", columns, [used])))
            for index, used in marks.items()
        ),
    )
    made = cast(type[Row], row)
    return Stream(name, {UNTAGGED: made}, ephemeral=ephemeral, effects={made: effects})


def _keys(stream: str, key: str, columns: Mapping[str, str], used: Sequence[str]) -> Sequence[str]:
    """Check the columns that an effect uses, and return them."""
    for column in used:
        if column not in columns:
            raise BadDeclaration(stream=stream, key=key, reason=f"there is no column {column!r}")
        type_, _ = parse_type(columns[column])
        if type_ in _NO_SCALARS:
            raise BadDeclaration(
                stream=stream,
                key=key,
                reason=f"column {column!r} is {columns[column]!r}, which cannot be part of a key",
            )
    return used


def _class_name(stream: str) -> str:
    return "".join(word.capitalize() for word in stream.split("_")) + "Row"
