"""DataFrames of a lake's tables and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.reading.schema import spark_schema

#: Spark interprets these characters in paths as patterns.
_PATTERNS = re.compile(r"[*?{}]")


def table_dataframe(
    spark: SparkSession, table: StreamTable, files: Iterable[DataFile] | None = None
) -> DataFrame:
    """The rows of a table, or of some of its files; columns that a file lacks are null.

    The files have to exist while the DataFrame is used: see :meth:`.Lake.read_lock`.
    """
    schema = spark_schema(table.stream_schema.columns)
    wanted = table.files if files is None else files
    return parquet_dataframe(spark, schema, [str(table.path_of(file)) for file in wanted])


def parquet_dataframe(
    spark: SparkSession, schema: StructType | str, paths: Sequence[str]
) -> DataFrame:
    """The rows of some files.

    A session can be configured to skip missing or damaged files. Files of a lake are never skipped,
    because a copy, a list of redactions or the result of a check would silently be wrong.
    """
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema)
    whole = reader.options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
    return whole.parquet(*map(escape_path, paths))


def escape_path(path: str) -> str:
    """Escape a path so that Spark does not interpret it as a pattern."""
    return _PATTERNS.sub(r"\\\g<0>", path)
