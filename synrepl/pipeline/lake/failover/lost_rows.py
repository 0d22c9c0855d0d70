"""Finds rows of the lake that the database lost in a failover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.dataframe import table_dataframe
from synrepl.pipeline.lake.source_rows import no_mask, source_rows
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_failovers import LossWindow
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.pipeline.source.errors import original_error
from synrepl.pipeline.source.plan.chunks import plan_chunks


@dataclass(frozen=True, slots=True)
class LostRows:
    """Rows of one writer that one failover lost: above ``after``, up to ``upto``.

    :ivar incarnation: of the database's server after the failover
    :ivar rows: how many rows of the lake in this range the database lacks
    """

    incarnation: int
    writer: str
    after: Token
    upto: Token
    rows: int

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows of writer {self.writer!r}, tokens {self.after + 1} to {self.upto},"
            f" lost by the database in the failover to incarnation {self.incarnation}"
        )


def summarize_lost(rows: DataFrame) -> list[LostRows]:
    """Count lost rows by failover and writer.

    :param rows: the lost rows, with columns ``incarnation``, ``writer``, ``token``
    """
    counted = rows.groupBy("incarnation", "writer").agg(
        f.min("token").alias("low"), f.max("token").alias("high"), f.count("*").alias("rows")
    )
    return [
        LostRows(row["incarnation"], row["writer"], row["low"] - 1, row["high"], row["rows"])
        for row in counted.orderBy("incarnation", "writer").collect()
    ]


def losing_incarnation(ranges: Sequence[LossWindow], token: SparkColumn) -> SparkColumn:
    """The incarnation after the failover that may have lost a row; NULL if none can.

    :param token: the row's token; the DataFrame also needs a column ``writer``
    """
    found = f.lit(None).cast("int")
    for window in ranges:
        kept, landed = window.kept, window.landed
        named = sorted(kept.writers.keys() | landed.writers.keys())
        inside = (token > kept.linear) & (token <= landed.linear)
        for writer in named:
            own = (token > kept[writer]) & (token <= landed[writer])
            inside = f.when(f.col("writer") == writer, own).otherwise(inside)
        found = f.when(inside, f.lit(window.incarnation)).otherwise(found)
    return found


def count_lost(
    spark: SparkSession, table: StreamTable, source: SourceDatabase, dsn: str, window: LossWindow
) -> list[LostRows]:
    """Count the rows of a table that one failover has lost.

    Compares the rows that are not proven to have survived; reads only keys from the database.

    :raises ReadingAway: :raises ReadFailed: :raises ReadElsewhere: :raises Trimmed:
    """
    try:
        return summarize_lost(lost_keys(spark, table, source, dsn, window))
    except PySparkException as error:
        raise original_error(error) or error from None


def lost_keys(
    spark: SparkSession, table: StreamTable, source: SourceDatabase, dsn: str, window: LossWindow
) -> DataFrame:
    """The lost rows: ``stream_id``, ``row_no``, ``writer``, ``incarnation``, ``token``."""
    stream, stream_schema = table.stream, table.stream_schema
    heads = StreamSchema(stream, stream_schema.counts_down, ())
    names = [column.name for column in HEAD]
    parts = list(
        plan_chunks(source, {stream: window.kept}, {stream: window.landed}, {stream: names})
    )
    there = source_rows(spark, dsn, parts, heads, no_mask)
    clip = window.ranges.span
    token = -f.col("stream_id") if stream_schema.counts_down else f.col("stream_id")
    low, high = (
        (-clip.upto, -clip.after - 1) if stream_schema.counts_down else (clip.after + 1, clip.upto)
    )
    files = [file for file in table.files if file.low <= high and file.high >= low]
    mine = (
        table_dataframe(spark, table, files)
        .select(*names)
        .withColumn("incarnation", losing_incarnation([window], token))
        .where("incarnation IS NOT NULL")
        .withColumn("token", token)
    )
    return mine.join(there.select("stream_id", "row_no"), ["stream_id", "row_no"], "left_anti")
