"""What is written into the log of a Delta table, and read from it: fields, and files with their statistics."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import ArrayType, PrimitiveType
from deltalake.transaction import AddAction

from synrepl.pipeline.lake.column_ranges import ColumnRange, skipping_columns
from synrepl.pipeline.lake.computed_columns import file_schema
from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.streams.columns import Column, ColumnType

#: The table property with the columns of which the log has the extremes of each file.
STATISTICS = "delta.dataSkippingStatsColumns"

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


def computed_field(name: str) -> Field:
    """The field of a computed column."""
    return Field(name, PrimitiveType("timestamp"))


def columns_with_statistics(stream_schema: StreamSchema) -> str:
    """The columns of which the log has the extremes of each file, as :data:`STATISTICS` names them."""
    return ",".join(("stream_id", *skipping_columns(file_schema(stream_schema))))


def add_action(file: DataFile, change: bool) -> AddAction:
    """The action that adds a file to a table.

    :param change: it changes the table's rows, and not only their arrangement
    """
    return AddAction(
        path=file.name,
        size=file.size,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=change,
        stats=file.stats,
    )


def lack_statistics(table: DeltaTable, columns: Iterable[str]) -> bool:
    """Whether a file of a table lacks the number of NULLs of a column, and so perhaps its extremes."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return False
    counts = [f"null_count.{name}" for name in columns]
    return any(name not in actions.column_names or actions[name].null_count for name in counts)


def files_of(actions: pa.Table, stream_schema: StreamSchema) -> list[DataFile]:
    """The files of a table, by its flattened actions."""
    heads = ("path", "size_bytes", "num_records", "min.stream_id", "max.stream_id")
    rows = zip(*(actions[name].to_pylist() for name in heads), strict=True)
    files = [DataFile(*row) for row in rows]
    ranges: list[list[ColumnRange]] = [[] for _ in files]
    for column in skipping_columns(file_schema(stream_schema)):
        nothing = pa.nulls(actions.num_rows).to_pylist()
        lows, highs, counts = (
            actions[name].to_pylist() if name in actions.column_names else nothing
            for name in (f"{what}.{column}" for what in ("min", "max", "null_count"))
        )
        for found, low, high, nulls in zip(ranges, lows, highs, counts, strict=True):
            if nulls is not None:
                found.append(ColumnRange(column, low, high, nulls))
    return [
        DataFile(file.name, file.size, file.rows, file.low, file.high, tuple(found))
        for file, found in zip(files, ranges, strict=True)
    ]
