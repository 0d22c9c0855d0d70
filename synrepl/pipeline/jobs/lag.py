"""Job ``lag``: the time between a row's own time and when it was first on record, or landed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from synrepl.pipeline.jobs.job import (
    COUNT,
    NUMBER,
    TEXT,
    TIME,
    JobInput,
    LakeJob,
    Plot,
    PlotKind,
    schema,
)
from synrepl.pipeline.jobs.longform import hour

#: Accuracy of percentiles: the error is at most a 1,000th of the rows.
_ACCURACY = 1000


def transform(rows: DataFrame) -> DataFrame:
    """Lag in seconds, by the hour of the rows' own time, stream and writer.

    It is as exact as watermarks are: to a minute. It is negative if clocks differ. ``unseen`` counts
    rows that no watermark dates; hours with only such rows have no lag.
    """
    lag = (f.col("seen_ms") - f.col("at_ms")) / 1000
    return (
        rows.where("at_ms IS NOT NULL")
        .select(hour(f.col("at_ms")).alias("hour"), "stream", "writer", lag.alias("lag"))
        .groupBy("hour", "stream", "writer")
        .agg(
            f.count("*").alias("rows"),
            f.count_if(f.col("lag").isNull()).alias("unseen"),
            f.percentile_approx("lag", 0.5, _ACCURACY).alias("median_s"),
            f.percentile_approx("lag", 0.95, _ACCURACY).alias("p95_s"),
            f.max("lag").alias("worst_s"),
        )
        .orderBy("hour", "stream", "writer")
    )


LAG = LakeJob(
    "lag",
    "How long after they happened facts were seen on record",
    # Streams whose rows have the time of writing. The times of presence are only close to it.
    JobInput(streams=("caches", "receipts")),
    schema(
        hour=TIME,
        stream=TEXT,
        writer=TEXT,
        rows=COUNT,
        unseen=COUNT,
        median_s=NUMBER,
        p95_s=NUMBER,
        worst_s=NUMBER,
    ),
    Plot(
        PlotKind.LINES,
        x="hour",
        y="p95_s",
        series=("stream", "writer"),
        label="lag of 95 % of the rows, in seconds",
        add=False,
    ),
    transform,
)
