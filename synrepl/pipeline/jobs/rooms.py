"""Job ``rooms``: how rooms grow."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from synrepl.pipeline.jobs.job import COUNT, DAY, TEXT, JobInput, LakeJob, Plot, PlotKind, schema
from synrepl.pipeline.jobs.longform import day, happened_ms


def transform(rows: DataFrame) -> DataFrame:
    """Rows of each room by day, their running total, and their number on all days.

    An unknown day comes first, because rows before the first watermark are older than all others.
    """
    growing = Window.partitionBy("room_id").orderBy(f.col("day").asc_nulls_first())
    of_room = Window.partitionBy("room_id")
    return (
        rows.where("room_id IS NOT NULL")
        .groupBy("room_id", day(happened_ms()).alias("day"))
        .agg(f.count("*").alias("rows"))
        .withColumn("total", f.sum("rows").over(growing))
        .withColumn("all_days", f.sum("rows").over(of_room))
        .orderBy(f.desc("all_days"), "room_id", f.col("day").asc_nulls_first())
        .select("room_id", "day", "rows", "total", "all_days")
    )


ROOMS = LakeJob(
    "rooms",
    "How rooms grow, the largest first",
    JobInput(),
    schema(room_id=TEXT, day=DAY, rows=COUNT, total=COUNT, all_days=COUNT),
    Plot(PlotKind.LINES, x="day", y="total", series=("room_id",), label="rows so far", add=False),
    transform,
)
