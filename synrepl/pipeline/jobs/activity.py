"""Job ``activity``: numbers of rows, rooms and users by day."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from synrepl.pipeline.jobs.job import COUNT, DAY, TEXT, JobInput, LakeJob, Plot, PlotKind, schema
from synrepl.pipeline.jobs.longform import day, happened_ms


def transform(rows: DataFrame) -> DataFrame:
    """Rows, distinct rooms and users by day, stream and writer; the day is null if unknown."""
    return (
        rows.groupBy(day(happened_ms()).alias("day"), "stream", "writer")
        .agg(
            f.count("*").alias("rows"),
            f.count_distinct("room_id").alias("rooms"),
            f.count_distinct("user_id").alias("users"),
        )
        .orderBy("day", "stream", "writer")
    )


ACTIVITY = LakeJob(
    "activity",
    "What happened each day, by stream and writer",
    JobInput(),
    schema(day=DAY, stream=TEXT, writer=TEXT, rows=COUNT, rooms=COUNT, users=COUNT),
    Plot(PlotKind.LINES, x="day", y="rows", series=("stream",), label="rows a day", log=True),
    transform,
)
