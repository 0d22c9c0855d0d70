"""A stream's table as a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.reading.schema import spark_schema

#: Spark takes paths for patterns.
_PATTERNS = re.compile(r"[*?{}]")


def table_dataframe(
    spark: SparkSession, table: StreamTable, files: Iterable[DataFile] | None = None
) -> DataFrame:
    """All rows of a table, or those in some of its files; columns that a file lacks are null.

    What it reads has to stay there while it is used: see :meth:`.Lake.read_lock`.
    """
    schema = spark_schema(table.stream_schema.columns)
    wanted = table.files if files is None else files
    return parquet_dataframe(spark, schema, [str(table.path_of(file)) for file in wanted])


def parquet_dataframe(
    spark: SparkSession, schema: StructType | str, paths: Sequence[str]
) -> DataFrame:
    """The rows of some files, all of them.

    Sessions can be told to pass over files that are missing or damaged. A lake's are not: what
    is made of them (a copy, a list of redactions, a verdict) would be wrong, and say nothing.
    """
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema)
    whole = reader.options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
    return whole.parquet(*map(escape_path, paths))


def escape_path(path: str) -> str:
    """A path as Spark has to be given it, to take it as it is."""
    return _PATTERNS.sub(r"\\\g<0>", path)
