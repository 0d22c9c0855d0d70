"""Rows that the lake has, and that the database lost in a failover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.check.source import as_they_are, source_rows
from synrepl.pipeline.lake.failover.failovers import LossWindow
from synrepl.pipeline.lake.frame import frame
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.shape import HEAD, Shape
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import reason
from synrepl.pipeline.source.plan.plan import chunks


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


def lost_from(rows: DataFrame) -> list[LostRows]:
    """Count rows that are lost.

    :param rows: with columns ``incarnation``, ``writer``, ``token``
    """
    counted = rows.groupBy("incarnation", "writer").agg(
        f.min("token").alias("low"), f.max("token").alias("high"), f.count("*").alias("rows")
    )
    return [
        LostRows(row["incarnation"], row["writer"], row["low"] - 1, row["high"], row["rows"])
        for row in counted.orderBy("incarnation", "writer").collect()
    ]


def incarnation_of(windows: Sequence[LossWindow], token: SparkColumn) -> SparkColumn:
    """By column ``writer`` and the token, the failover that can have lost a row; NULL if none can."""
    found = f.lit(None).cast("int")
    for window in windows:
        kept, landed = window.kept, window.landed
        named = sorted(kept.writers.keys() | landed.writers.keys())
        inside = (token > kept.linear) & (token <= landed.linear)
        for writer in named:
            own = (token > kept[writer]) & (token <= landed[writer])
            inside = f.when(f.col("writer") == writer, own).otherwise(inside)
        found = f.when(inside, f.lit(window.incarnation)).otherwise(found)
    return found


def count_lost(
    spark: SparkSession, table: StreamTable, origin: SourceDatabase, dsn: str, window: LossWindow
) -> list[LostRows]:
    """Find what one failover has lost of what a table has.

    Reads from both sides what is not proven to have survived; of the database no more than keys.

    :raises ReadingAway: :raises ReadFailed: :raises ReadElsewhere: :raises Trimmed:
    """
    try:
        return lost_from(lost_keys(spark, table, origin, dsn, window))
    except PySparkException as error:
        raise reason(error) or error from None


def lost_keys(
    spark: SparkSession, table: StreamTable, origin: SourceDatabase, dsn: str, window: LossWindow
) -> DataFrame:
    """``stream_id``, ``row_no``, ``writer``, ``incarnation``, ``token`` of the rows themselves."""
    stream, shape = table.stream, table.shape
    heads = Shape(stream, shape.counts_down, ())
    names = [column.name for column in HEAD]
    parts = list(chunks(origin, {stream: window.kept}, {stream: window.landed}, {stream: names}))
    there = source_rows(spark, dsn, parts, heads, as_they_are)
    clip = window.windows.clip
    token = -f.col("stream_id") if shape.counts_down else f.col("stream_id")
    low, high = (-clip.upto, -clip.after - 1) if shape.counts_down else (clip.after + 1, clip.upto)
    files = [file for file in table.files if file.low <= high and file.high >= low]
    mine = (
        frame(spark, table, files)
        .select(*names)
        .withColumn("incarnation", incarnation_of([window], token))
        .where("incarnation IS NOT NULL")
        .withColumn("token", token)
    )
    return mine.join(there.select("stream_id", "row_no"), ["stream_id", "row_no"], "left_anti")
