"""Arrow and Spark schemas of a stream's columns."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import types as t

from synrepl.streams.columns import Column, ColumnType

_ARROW: dict[ColumnType, pa.DataType] = {
    ColumnType.TEXT: pa.string(),
    ColumnType.BIGINT: pa.int64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.JSON: pa.string(),
    ColumnType.TEXT_ARRAY: pa.list_(pa.field("element", pa.string())),
}

_SPARK: dict[ColumnType, t.DataType] = {
    ColumnType.TEXT: t.StringType(),
    ColumnType.BIGINT: t.LongType(),
    ColumnType.BOOLEAN: t.BooleanType(),
    ColumnType.DOUBLE: t.DoubleType(),
    ColumnType.JSON: t.StringType(),
    ColumnType.TEXT_ARRAY: t.ArrayType(t.StringType()),
}


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of rows with these columns; JSON is text."""
    return pa.schema(
        [pa.field(column.name, _ARROW[column.type], column.nullable) for column in columns]
    )


def spark_schema(columns: Iterable[Column]) -> t.StructType:
    """The Spark schema of rows with these columns; JSON is text."""
    return t.StructType(
        [t.StructField(column.name, _SPARK[column.type], column.nullable) for column in columns]
    )
