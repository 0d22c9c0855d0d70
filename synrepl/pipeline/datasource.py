"""Spark data source ``synrepl``, for reads and writes, batch and streaming.

register(spark)
spark.read.format("synrepl").option("database", dsn).option("stream", "events").load()
spark.readStream.format("synrepl").option("database", dsn).option("stream", "*").load()
rows.write.format("synrepl").option("database", dsn).option("stream", "orders").mode("append").save()
"""

from __future__ import annotations

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
from synrepl.pipeline.source.options import parse_source_options
from synrepl.pipeline.source.stream import StreamReader
from synrepl.pipeline.source.streams import read_schema_of


class SynreplDataSource(DataSource):
    """Streams of a database as rows. Its options are those of :mod:`.source.options`."""

    @classmethod
    def name(cls) -> str:
        """The name to pass to ``format(…)``."""
        return "synrepl"

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

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return BatchReader(parse_source_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return StreamReader(parse_source_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For ``DataFrame.write``; its options are those of :mod:`.sink.options`."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For ``DataFrame.writeStream``; its options are those of :mod:`.sink.options`."""
        return stream_writer(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register the data source with a session."""
    spark.dataSource.register(SynreplDataSource)
