"""Job ``skew``: how unevenly rows are distributed over rooms, which limits tasks that take one room each."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from synrepl.pipeline.jobs.job import COUNT, NUMBER, TEXT, JobInput, LakeJob, Plot, PlotKind, schema

#: Number of largest rooms whose share is reported.
_TOP = 10


def transform(rows: DataFrame) -> DataFrame:
    """The share of the largest rooms, and the Gini coefficient, by stream.

    The coefficient is 0 if all rooms have the same number of rows, and nears 1 if one has them all.
    """
    # Rooms with the same number of rows are counted together. There are few such numbers, so the
    # windows, which Spark does not split, are small however many rooms there are.
    sizes = (
        rows.where("room_id IS NOT NULL")
        .groupBy("stream", "room_id")
        .agg(f.count("*").alias("size"))
        .groupBy("stream", "size")
        .agg(f.count("*").alias("rooms"))
    )
    rising = Window.partitionBy("stream").orderBy("size")
    falling = Window.partitionBy("stream").orderBy(f.desc("size"))
    rooms, size = f.col("rooms"), f.col("size")
    smaller = f.sum("rooms").over(rising) - rooms
    larger = f.sum("rooms").over(falling) - rooms
    placed = sizes.select(
        "stream",
        "size",
        "rooms",
        # The sum over rooms of place times size; of doubles, for it may be large.
        (size.cast("double") * (rooms * smaller + rooms * (rooms + 1) / 2)).alias("weight"),
        (size * f.least(rooms, f.greatest(f.lit(0), _TOP - larger))).alias("top"),
    )
    in_all = f.sum(size * rooms)
    count = f.sum("rooms")
    gini = 2 * f.sum("weight") / (count * in_all) - (count + 1) / count
    return (
        placed.groupBy("stream")
        .agg(
            count.alias("rooms"),
            in_all.alias("rows"),
            (f.max("size") / in_all).alias("largest"),
            (f.sum("top") / in_all).alias("top_10"),
            gini.alias("gini"),
        )
        .orderBy(f.desc("gini"), "stream")
    )


SKEW = LakeJob(
    "skew",
    "How unevenly the rows of each stream lie in rooms",
    JobInput(needs_seen_ms=False),
    schema(stream=TEXT, rooms=COUNT, rows=COUNT, largest=NUMBER, top_10=NUMBER, gini=NUMBER),
    Plot(
        PlotKind.BARS,
        y="gini",
        series=("stream",),
        label="Gini coefficient (0 even, 1 one room)",
        most=1.0,
    ),
    transform,
)
