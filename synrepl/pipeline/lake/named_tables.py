"""The tables of a lake by name, in the catalogue of a Spark session: for SQL, in notebooks and elsewhere.

A name leads to the data source ``synrepl_lake``, which looks up the files of the table's present
version for each query. So it works in sessions that have no connector for Delta tables, and for lakes
in object stores. In a session with a Hive metastore, names outlast the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from synrepl.core.errors import Refused
from synrepl.pipeline.lake.data_files import read_batches
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.options import DataSourceOptions
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.named_first import named_first
from synrepl.pipeline.source.reading.schema import arrow_schema, spark_schema

#: The property of a named table with the lake that it is of.
_LAKE = "synrepl.lake"


class NameTaken(Refused):
    """there is a table {name} in Spark's catalogue already, and it is not of the lake {path}; give another schema, or drop it"""


class LakeFilePartition(InputPartition):
    """A file of a table, for one task."""

    def __init__(self, path: LakePath) -> None:
        super().__init__(None)
        self.path = path


class LakeTableReader(DataSourceReader):
    """Reads the present version of a table. It is pickled, so it holds no table.

    :param schema: the columns to read; some may be missing, if the table has been widened since
    """

    def __init__(self, lake: str, stream: str, schema: StructType) -> None:
        self._lake = lake
        self._stream = stream
        self._names = schema.names

    @named_first
    def partitions(self) -> Sequence[InputPartition]:
        """One for each file.

        :raises NotALake: :raises NotInTheLake: :raises LakeFailed:
        """
        table = Lake(self._lake).table(self._stream)
        return [LakeFilePartition(table.path_of(file)) for file in table.files]

    @named_first
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a file; runs in a task. None for a partition that is not ours.

        :raises FolderNotShared: it is not there
        """
        if not isinstance(
            partition, LakeFilePartition
        ):  # Spark passes an empty one if there are none
            return
        columns = Lake(self._lake).table(self._stream).stream_schema.columns
        by_name = {field.name: field.with_nullable(True) for field in arrow_schema(columns)}
        yield from read_batches(partition.path, pa.schema([by_name[name] for name in self._names]))


class LakeDataSource(DataSource):
    """A table of a lake: ``spark.read.format("synrepl_lake").option("lake", …).option("stream", …)``."""

    @classmethod
    def name(cls) -> str:
        """The name to pass to ``format(…)`` or ``USING``."""
        return "synrepl_lake"

    @named_first
    def schema(self) -> StructType:
        """The columns of the stream; all of them may be null.

        :raises OptionMissing: :raises NotALake: :raises NotInTheLake:
        """
        lake, stream = self._given
        return _nullable(Lake(lake).table(stream).stream_schema)

    @named_first
    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``, and for tables by name."""
        return LakeTableReader(*self._given, schema)

    @property
    def _given(self) -> tuple[str, str]:
        known = ("lake", "stream")
        # Spark adds what it knows of a table in its catalogue.
        added = {name.lower() for name in self.options} - set(known)
        options = DataSourceOptions("lake source", self.options, known, added)
        return (
            options.needed("lake", "its folder or URL"),
            options.needed("stream", "the name of a stream"),
        )


def register_lake(spark: SparkSession, lake: str, schema: str = "lake") -> list[str]:
    """Give the tables of a lake names in the catalogue of a session: ``<schema>.<stream>``.

    Call it again for streams and columns that are new. A session that finds the names in its
    metastore has to :func:`.register` the data source.

    :param lake: its folder or URL
    :param schema: is created, if there is none
    :returns: the names
    :raises NotALake: :raises LakeFailed:
    :raises NameTaken: a name is another table's; nothing was changed
    """
    opened = Lake(lake)
    path = str(opened.path)
    spark.dataSource.register(LakeDataSource)
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
    names = {stream: f"{_quoted(schema)}.{_quoted(stream)}" for stream in opened.streams}
    there = {row.tableName for row in spark.sql(f"SHOW TABLES IN {_quoted(schema)}").collect()}
    known = {stream: name for stream, name in names.items() if stream.lower() in there}
    for name in known.values():
        properties = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        if path not in [row.value for row in properties if row.key == _LAKE]:
            raise NameTaken(name=name, path=path)
    for stream, name in names.items():
        if stream in known:
            columns = _nullable(opened.table(stream).stream_schema)
            if spark.table(name).schema.simpleString() == columns.simpleString():
                continue
            spark.sql(f"DROP TABLE {name}")
        spark.sql(
            f"CREATE TABLE {name} USING {LakeDataSource.name()}"
            f" OPTIONS (lake {_literal(path)}, stream {_literal(stream)})"
            f" TBLPROPERTIES ({_literal(_LAKE)} = {_literal(path)})"
        )
    return [f"{schema}.{stream}" for stream in names]


def _nullable(stream_schema: StreamSchema) -> StructType:
    fields = spark_schema(stream_schema.columns).fields
    return StructType([StructField(field.name, field.dataType, True) for field in fields])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
