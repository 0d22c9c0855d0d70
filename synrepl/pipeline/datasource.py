"""Spark data source ``synrepl``, for reads and writes, batch and streaming.

register(spark)
spark.read.format("synrepl").option("database", dsn).option("stream", "events").load()
spark.readStream.format("synrepl").option("database", dsn).option("stream", "*").load()
rows.write.format("synrepl").option("database", dsn).option("stream", "orders").mode("append").save()
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from synrepl.pipeline.sink.writers import batch_writer, stream_writer
from synrepl.pipeline.source.batch import BatchReader
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.named_first import named_first
from synrepl.pipeline.source.options import parse_source_options
from synrepl.pipeline.source.stream import StreamReader
from synrepl.pipeline.source.streams import read_schema_of


class SynreplDataSource(DataSource):
    """Streams of a database as rows. Its options are those of :mod:`.source.options`."""

    @classmethod
    def name(cls) -> str:
        """The name to pass to ``format(…)``."""
        return "synrepl"

    @named_first
    def schema(self) -> StructType:
        """The columns of the requested streams.

        :raises NoSuchStream: :raises ColumnsDisagree: :raises DatabaseAway:
        """
        options = parse_source_options(self.options)
        source = open_source_database(options.dsn, "source", options.patience_s)
        try:
            return read_schema_of(source, options).schema
        finally:
            source.close()

    @named_first
    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return BatchReader(parse_source_options(self.options, streaming=False), schema)

    @named_first
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return StreamReader(parse_source_options(self.options, streaming=True), schema)

    @named_first
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For ``DataFrame.write``; its options are those of :mod:`.sink.options`."""
        return batch_writer(self.options, schema, overwrite)

    @named_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For ``DataFrame.writeStream``; its options are those of :mod:`.sink.options`."""
        return stream_writer(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register the data source with a session.

    In a session on this machine, Spark's Python workers run the Python of this process from now on,
    unless ``PYSPARK_PYTHON`` names another one. Spark's default is the ``python3`` on PATH, which
    lacks our packages unless their virtual environment is activated.
    """
    context = getattr(spark, "sparkContext", None)  # a Connect session has none
    named = os.environ.get("PYSPARK_PYTHON") or not sys.executable
    if context is not None and context.master.startswith("local") and not named:
        context.pythonExec = sys.executable
    spark.dataSource.register(SynreplDataSource)
