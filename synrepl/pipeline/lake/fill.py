"""Fills erased cells with empty values where a database does not accept NULL.

Erasing leaves NULL in the lake, even in columns that are not nullable in the stream. A copy gets the
empty value of the column's type instead: ``''``, ``{}`` or an empty array, and ``''`` for an element
of an array. Numbers and booleans are never erased, so they have no empty value.
"""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.streams.columns import Column, ColumnType

#: The empty value of each type, in Spark's SQL.
_EMPTY = {
    ColumnType.TEXT: "''",
    ColumnType.JSON: "'{}'",
    ColumnType.TEXT_ARRAY: "cast(array() AS array<string>)",
}


def fill_erased_cells(rows: DataFrame, target: StreamSchema) -> DataFrame:
    """Fill the erased cells of a lake's rows, so that a database accepts them.

    :param rows: rows with the lake's columns
    :param target: the stream's columns in the database
    """
    cells = _fillable(rows, target)
    return rows.withColumns({each.name: _filled(each) for each in cells}) if cells else rows


def count_cells_to_fill(rows: DataFrame, target: StreamSchema) -> SparkColumn:
    """An aggregate: the number of cells that :func:`fill_erased_cells` fills."""
    counts = [f.count_if(_lacking(each)) for each in _fillable(rows, target)]
    return sum(counts, start=f.lit(0))


def _fillable(rows: DataFrame, target: StreamSchema) -> list[Column]:
    here = set(rows.columns)
    return [
        each
        for each in target.cells
        if each.name in here
        and (each.type is ColumnType.TEXT_ARRAY or (not each.nullable and each.type in _EMPTY))
    ]


def _filled(column: Column) -> SparkColumn:
    cell = _cell(column)
    if column.type is ColumnType.TEXT_ARRAY:
        cell = f.transform(cell, lambda each: f.coalesce(each, f.lit("")))
    return cell if column.nullable else f.coalesce(cell, f.expr(_EMPTY[column.type]))


def _lacking(column: Column) -> SparkColumn:
    cell = _cell(column)
    lacking = f.lit(False) if column.nullable else f.isnull(cell)
    if column.type is ColumnType.TEXT_ARRAY:
        lacking = lacking | f.coalesce(f.exists(cell, f.isnull), f.lit(False))
    return lacking


def _cell(column: Column) -> SparkColumn:
    return f.col(f"`{column.name}`")
