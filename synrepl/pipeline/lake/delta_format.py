"""The columns of a stream as fields of a Delta table, and back."""

from __future__ import annotations

from deltalake import Field
from deltalake.schema import ArrayType, PrimitiveType

from synrepl.pipeline.source.database.stream_schema import HEAD
from synrepl.streams.columns import Column, ColumnType

#: Metadata of a field: the type of the column, as several have the same type in Delta.
_TYPE = "synrepl.type"

_DELTA: dict[ColumnType, PrimitiveType | ArrayType] = {
    ColumnType.TEXT: PrimitiveType("string"),
    ColumnType.BIGINT: PrimitiveType("long"),
    ColumnType.BOOLEAN: PrimitiveType("boolean"),
    ColumnType.DOUBLE: PrimitiveType("double"),
    ColumnType.JSON: PrimitiveType("string"),
    ColumnType.TEXT_ARRAY: ArrayType(PrimitiveType("string"), contains_null=True),
}


def field_of(column: Column) -> Field:
    """The field of a column; nullable, unless the column is in the head of every stream."""
    nullable = column not in HEAD
    return Field(
        column.name, _DELTA[column.type], nullable=nullable, metadata={_TYPE: column.type.value}
    )


def column_of(field: Field) -> Column:
    """The column of a field that :func:`field_of` made."""
    return Column(field.name, ColumnType(field.metadata[_TYPE]), field.nullable)
