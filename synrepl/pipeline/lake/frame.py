"""A stream's table as a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from synrepl.pipeline.lake.files import DataFile
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.reading.schema import spark_schema

#: Spark takes paths for patterns.
_PATTERNS = re.compile(r"[*?{}]")


def frame(
    spark: SparkSession, table: StreamTable, files: Iterable[DataFile] | None = None
) -> DataFrame:
    """All rows of a table, or those in some of its files; columns that a file lacks are null.

    What it reads has to stay there while it is used: see :meth:`.Lake.reading`.
    """
    schema = spark_schema(table.shape.columns)
    wanted = table.files if files is None else files
    paths = [literal(str(table.path_of(file))) for file in wanted]
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*paths)


def literal(path: str) -> str:
    """A path as Spark has to be given it, to take it as it is."""
    return _PATTERNS.sub(r"\\\g<0>", path)
