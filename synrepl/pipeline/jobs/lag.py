"""How long after it happened something was seen on record, or landed."""

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

#: Of percentiles: off by no more than a 1,000th of the rows.
_ACCURACY = 1000


def transform(rows: DataFrame) -> DataFrame:
    """Lag in seconds by the hour in which rows happened, stream and writer.

    As exact as marks are, which is a minute. Negative where clocks differ. ``unseen`` are rows
    that no mark tells anything of; hours with no others have no lag.
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
    # Those whose rows tell when they were written. A time of presence is only near that.
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
