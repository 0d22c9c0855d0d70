"""The columns of a read, of one stream or of several streams combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from synrepl.core.errors import ConfigError, InputError
from synrepl.pipeline.source.database.stream_schema import (
    HEAD,
    STREAM,
    StreamSchema,
    no_such_column,
)
from synrepl.pipeline.source.reading.schema import arrow_schema, spark_schema
from synrepl.streams.columns import Column, ColumnType

#: The reason why a value of a row does not fit, and all its values as text, in a JSON object.
#: Null in other rows. All other columns of such a row are null, except those that place it.
BAD_ROW = (
    Column("_bad_reason", ColumnType.TEXT, True),
    Column("_bad_cells", ColumnType.TEXT, True),
)

#: Columns that every row has, bad or not.
_PLACE = frozenset({STREAM.name, *(column.name for column in HEAD)})

#: Our column types by Spark type.
_TYPES = {
    spark_schema([Column("", word, True)])[0].dataType: word
    for word in ColumnType
    if word is not ColumnType.JSON
}


class ColumnsDisagree(ConfigError):
    """column {column!r} is {first} in stream {one!r} and {second} in stream {other!r}, so they cannot be read together; read them one by one, or leave that column out with the option columns"""


class StreamColumnTaken(ConfigError):
    """stream {stream!r} has a column 'stream' of its own, so it cannot be read together with others; read it alone"""


class BadRowColumnTaken(ConfigError):
    """a stream has a column {column!r} of its own, so bad rows cannot be given with on_bad_rows=keep; leave it out with the option columns"""


class OtherColumn(InputError):
    """the schema has column {column!r} as {wanted}, and it is {found}; correct the schema, or leave it out"""


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """The columns of a read; rows of every stream have them all.

    :ivar columns: in order; a column is also nullable if some of the streams lack it
    """

    columns: tuple[Column, ...]

    @classmethod
    def named(cls, schema: StructType) -> ReadSchema:
        """The columns of a Spark schema, in which JSON is text."""
        return cls(
            tuple(
                Column(field.name, _TYPES.get(field.dataType, ColumnType.TEXT), field.nullable)
                for field in schema
            )
        )

    @property
    def schema(self) -> StructType:
        """The Spark schema."""
        return spark_schema(self.columns)

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema."""
        return arrow_schema(self.columns)

    def only(self, names: Sequence[str], where: str) -> ReadSchema:
        """Some of the columns, in the given order.

        :raises NoSuchColumn: there is no column of that name
        """
        by_name = {column.name: column for column in self.columns}
        for name in names:
            if name not in by_name:
                raise no_such_column(name, where, list(by_name))
        return ReadSchema(tuple(by_name[name] for name in names))

    def fitted(self, schema: StructType, where: str) -> ReadSchema:
        """The columns that a user-supplied schema selects, with its nullability.

        :raises NoSuchColumn: :raises OtherColumn:
        """
        found = self.only(schema.fieldNames(), where)
        for column, ours, field in zip(found.columns, found.schema, schema, strict=True):
            if field.dataType != ours.dataType or (column.nullable and not field.nullable):
                raise OtherColumn(
                    column=column.name, wanted=_ddl(field), found=_ddl(ours) + _null(ours.nullable)
                )
        return ReadSchema(
            tuple(
                column._replace(nullable=field.nullable)
                for column, field in zip(found.columns, schema, strict=True)
            )
        )

    @property
    def has_bad_rows(self) -> bool:
        """True if rows with a value that does not fit are part of the read."""
        return BAD_ROW[0].name in (column.name for column in self.columns)

    def with_bad_rows(self) -> ReadSchema:
        """These columns and those for bad rows, in which most of the others are null.

        :raises BadRowColumnTaken:
        """
        names = {column.name for column in self.columns}
        for taken in (column.name for column in BAD_ROW if column.name in names):
            raise BadRowColumnTaken(column=taken)
        return ReadSchema(
            (
                *(
                    column._replace(nullable=column.nullable or column.name not in _PLACE)
                    for column in self.columns
                ),
                *BAD_ROW,
            )
        )

    def read_of(self, stream_schema: StreamSchema) -> tuple[str, ...]:
        """The names of these columns that a stream has; at least one, so that rows can be counted.

        With bad rows, ``stream_id`` is among them, because facts are quarantined whole.
        """
        has = {column.name for column in stream_schema.columns}
        names = tuple(column.name for column in self.columns if column.name in has)
        first = HEAD[0].name
        return (*names, first) if self.has_bad_rows and first not in names else names or (first,)


def combine_schemas(
    stream_schemas: Sequence[StreamSchema], combined: bool, wanted: Sequence[str] | None
) -> ReadSchema:
    """Combine the columns of streams, by name.

    :param combined: add a column with the stream's name
    :param wanted: the names of the columns to read, in order; None for all
    :raises ColumnsDisagree: :raises StreamColumnTaken: :raises NoSuchColumn:
    """
    union: dict[str, Column] = {column.name: column for column in HEAD}
    first: dict[str, str] = {}
    counted: dict[str, int] = {}
    for stream_schema in stream_schemas:
        for column in stream_schema.cells:
            if wanted is not None and column.name not in wanted:
                union.setdefault(column.name, column)
                continue
            if combined and column.name == STREAM.name:
                raise StreamColumnTaken(stream=stream_schema.stream)
            seen = union.setdefault(column.name, column)
            if seen.type is not column.type:
                raise ColumnsDisagree(
                    column=column.name,
                    first=seen.type,
                    one=first[column.name],
                    second=column.type,
                    other=stream_schema.stream,
                )
            first.setdefault(column.name, stream_schema.stream)
            counted[column.name] = counted.get(column.name, 0) + 1
            union[column.name] = seen._replace(nullable=seen.nullable or column.nullable)
    heads = {column.name for column in HEAD}
    found = ReadSchema(
        (
            *((STREAM,) if combined else ()),
            *(
                column._replace(
                    nullable=column.name not in heads
                    and (column.nullable or counted.get(column.name) != len(stream_schemas))
                )
                for column in union.values()
                if not (combined and column.name == STREAM.name)
            ),
        )
    )
    if wanted is None:
        return found
    return found.only(wanted, ", ".join(stream_schema.stream for stream_schema in stream_schemas))


def _ddl(field: object) -> str:
    return str(field.dataType.simpleString())  # type: ignore[attr-defined]


def _null(nullable: bool) -> str:
    return " and may be null" if nullable else ""
