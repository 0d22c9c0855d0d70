"""Job ``heat``: which caches are invalidated most, and by which writers."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from synrepl.pipeline.jobs.job import COUNT, TEXT, TIME, JobInput, LakeJob, Plot, PlotKind, schema
from synrepl.pipeline.jobs.longform import happened_ms, hour
from synrepl.streams.columns import Column, ColumnType


def transform(rows: DataFrame) -> DataFrame:
    """Invalidations by hour, cache and writer; ``whole`` counts those of the whole cache."""
    return (
        rows.groupBy(
            hour(happened_ms()).alias("hour"), f.col("cache_func").alias("cache"), "writer"
        )
        .agg(f.count("*").alias("rows"), f.count_if(f.col("keys").isNull()).alias("whole"))
        .orderBy("hour", f.desc("rows"), "cache", "writer")
    )


HEAT = LakeJob(
    "heat",
    "Which caches are made stale, hour by hour",
    JobInput(
        streams=("caches",),
        columns=(
            Column("cache_func", ColumnType.TEXT, False),
            Column("keys", ColumnType.JSON, True),
        ),
    ),
    schema(hour=TIME, cache=TEXT, writer=TEXT, rows=COUNT, whole=COUNT),
    Plot(
        PlotKind.HEAT,
        x="hour",
        y="rows",
        series=("cache",),
        label="invalidations an hour",
        log=True,
    ),
    transform,
)
