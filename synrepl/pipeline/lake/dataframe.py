"""DataFrames of a lake's tables and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType, TimestampType

from synrepl.pipeline.lake.computed_columns import file_schema
from synrepl.pipeline.lake.data_files import DataFile, read_batches
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.reading.schema import spark_schema

#: What Hadoop's connectors call the schemes of object stores, where delta-rs has another name.
_HADOOP = {"s3": "s3a"}

#: Spark interprets these characters in paths as patterns.
_PATTERNS = re.compile(r"[*?{}]")


def table_dataframe(
    spark: SparkSession, table: StreamTable, files: Iterable[DataFile] | None = None
) -> DataFrame:
    """The rows of a table, or of some of its files, with computed columns; columns that a file lacks are null.

    The files have to exist while the DataFrame is used: see :meth:`.Lake.read_lock`.
    """
    stream_schema = table.stream_schema
    computed = [StructField(name, TimestampType()) for name in stream_schema.computed]
    schema = StructType([*spark_schema(stream_schema.columns), *computed])
    paths = [table.path_of(file) for file in (table.files if files is None else files)]
    return files_dataframe(spark, schema, file_schema(stream_schema), paths)


def files_dataframe(
    spark: SparkSession,
    schema: StructType,
    arrow: pa.Schema,
    paths: Sequence[LakePath],
) -> DataFrame:
    """The rows of files of a lake, wherever it is.

    Spark reads files of a folder itself, and those of an object store if the session has a connector
    for it. Without one, its Python workers read them, whole, one task for each file.
    """
    objects = [path for path in paths if not isinstance(path, Path)]
    if not objects:
        return parquet_dataframe(spark, schema, [str(path) for path in paths])
    if has_connector(spark, hadoop_url(objects[0]).partition(":")[0]):
        return parquet_dataframe(spark, schema, [hadoop_url(path) for path in objects])
    tasks = spark.range(0, len(objects), 1, len(objects))
    return tasks.mapInArrow(_FileTasks(tuple(objects), _nullable(arrow)).rows, _nullable(schema))


def hadoop_url(path: LakePath) -> str:
    """The URL of a folder, file or object, with the scheme that Hadoop's file systems have, and without escapes.

    Hadoop takes ``%20`` literally, where delta-rs takes it as a space.
    """
    if isinstance(path, Path):
        return f"file://{path}"
    scheme, colon, rest = str(path).partition(":")
    return f"{_HADOOP.get(scheme, scheme)}{colon}{unquote(rest)}"


def has_connector(spark: SparkSession, scheme: str) -> bool:
    """True if Hadoop's file systems in a session include one for a scheme; False over Spark Connect."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    try:
        conf = spark._jsc.hadoopConfiguration()
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JError:
        return False
    return True


@dataclass(frozen=True)
class _FileTasks:
    """Reads files in Python workers; pickled for tasks."""

    paths: tuple[LakePath, ...]
    schema: pa.Schema

    def rows(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_batches(self.paths[number], self.schema)


def _nullable(schema: Any) -> Any:
    """A schema of Spark or Arrow in which every column may be null, as Spark takes those of files."""
    if isinstance(schema, pa.Schema):
        return pa.schema([field.with_nullable(True) for field in schema])
    return StructType([StructField(field.name, field.dataType, True) for field in schema])


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
