"""Column types, and their form in Python, in Postgres and in a configuration file.

Only this module maps between the three, so a row class is also the declaration of a
table.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from synrepl.core.errors import InputError
from synrepl.streams.definition import Stream
from synrepl.streams.row import BigInt, Json, Row

#: The first column of a stream whose rows have kinds.
KIND_COLUMN = "kind"


class UnknownColumnType(InputError):
    """column type {word!r} is not known{hint}; the types are {known}, each with '?' after it when the column may be null"""


class UnsupportedField(InputError):
    """field {field!r} of {row} is annotated {annotation}, which no column type holds; use str, BigInt, bool, float, Json, dict, list or list[str], optional or not"""


class ColumnConflict(InputError):
    """column {column!r} of stream {stream!r} is {first} in one kind of row and {second} in another; give one of them another name"""


class ColumnType(StrEnum):
    """A column type; the value is its name in a configuration file."""

    TEXT = "text"
    BIGINT = "bigint"
    BOOLEAN = "boolean"
    DOUBLE = "double"
    JSON = "json"
    TEXT_ARRAY = "text[]"

    @property
    def sql(self) -> str:
        """The name of the type in Postgres, as ``format_type`` gives it."""
        return "double precision" if self is ColumnType.DOUBLE else self.value


class Column(NamedTuple):
    """One column of a stream's table.

    A ``json`` column that is not nullable can still hold JSON's ``null``.
    """

    name: str
    type: ColumnType
    nullable: bool


#: The Python annotation of a declared column, by type.
ANNOTATIONS: dict[ColumnType, Any] = {
    ColumnType.TEXT: str,
    ColumnType.BIGINT: BigInt,
    ColumnType.BOOLEAN: bool,
    ColumnType.DOUBLE: float,
    ColumnType.JSON: Json,
    ColumnType.TEXT_ARRAY: list[str],
}

# Row classes may have more specific annotations for JSON.
_TYPES = {annotation: word for word, annotation in ANNOTATIONS.items()} | {
    list[Json]: ColumnType.JSON,
    dict[str, Json]: ColumnType.JSON,
}


def parse_type(word: str) -> tuple[ColumnType, bool]:
    """Parse a type from a configuration file: ``"text"``, or ``"text?"`` for a nullable one.

    :returns: the type, and whether it is nullable
    :raises UnknownColumnType: it is not known; the message suggests a similar one
    """
    bare = word.removesuffix("?")
    try:
        return ColumnType(bare), bare != word
    except ValueError:
        near = difflib.get_close_matches(bare.lower(), list(ColumnType), n=1)
        raise UnknownColumnType(
            word=word[:100],
            hint=f"; did you mean {near[0]!s}?" if near else "",
            known=", ".join(ColumnType),
        ) from None


@lru_cache(maxsize=256)
def row_columns(row: type[Row]) -> tuple[Column, ...]:
    """The columns of one row class, in the order of its fields.

    :raises UnsupportedField: no column can hold the type of a field
    """
    hints = get_type_hints(row, include_extras=True)
    return tuple(_column(row, name, hints[name]) for name in row.__struct_fields__)


def columns(stream: Stream) -> tuple[Column, ...]:
    """The columns of a stream's table: the union over its kinds, in order of first occurrence.

    A column that some kind lacks is nullable. In a stream with kinds, the first column
    is ``kind``.

    :raises ColumnConflict: two kinds use one name for different types
    """
    per_kind = [row_columns(row) for row in stream.kinds.values()]
    union: dict[str, Column] = {}
    for column in (column for kind in per_kind for column in kind):
        seen = union.setdefault(column.name, column)
        if seen.type is not column.type:
            raise ColumnConflict(
                column=column.name, stream=stream.name, first=seen.type, second=column.type
            )
        union[column.name] = column._replace(nullable=seen.nullable or column.nullable)
    found = tuple(
        column._replace(nullable=column.nullable or not _everywhere(column.name, per_kind))
        for column in union.values()
    )
    if not stream.tagged:
        return found
    return (Column(KIND_COLUMN, ColumnType.TEXT, nullable=False), *found)


def sql_input(column: Column) -> Callable[[Any], object] | None:
    """The conversion of a cell for Postgres; None if the cell is passed as it is.

    JSON becomes JSON text, ``text[]`` an array literal and a number with a fraction its text, which
    work both as statement parameters and in COPY.
    """
    if column.type is ColumnType.DOUBLE:
        return _number_text
    if column.type is ColumnType.TEXT_ARRAY:
        return _array_literal
    if column.type is ColumnType.JSON:
        return _nullable_json_text if column.nullable else _json_text
    return None


def _everywhere(name: str, per_kind: Sequence[tuple[Column, ...]]) -> bool:
    return all(any(column.name == name for column in kind) for kind in per_kind)


def _column(row: type[Row], name: str, annotation: Any) -> Column:
    bare, nullable = _without_none(annotation)
    try:
        return Column(name, _TYPES[bare], nullable)
    except (KeyError, TypeError):  # TypeError: an annotation that cannot be hashed
        raise UnsupportedField(field=name, row=row.__name__, annotation=annotation) from None


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    rest = [part for part in get_args(annotation) if part is not type(None)]
    if len(rest) != 1:
        return annotation, False
    return rest[0], True


def _number_text(value: float | None) -> str | None:
    # As a number, PostgreSQL would read -0.0 as a numeric, which has no negative zero.
    if value is None:
        return None
    return str(value) if isinstance(value, int) else float.__repr__(value)


def _json_text(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _nullable_json_text(value: Json) -> str | None:
    return None if value is None else _json_text(value)


def _array_literal(items: list[str] | None) -> str | None:
    if items is None:
        return None
    quoted = (item.replace("\\", "\\\\").replace('"', '\\"') for item in items)
    return "{" + ",".join(f'"{item}"' for item in quoted) + "}"
