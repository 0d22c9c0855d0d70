"""How unevenly rows lie in rooms: what a task that takes one room has to bear."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from synrepl.pipeline.jobs.job import COUNT, NUMBER, TEXT, JobInput, LakeJob, Plot, PlotKind, schema

#: The share of so many of the largest rooms is told.
_TOP = 10


def transform(rows: DataFrame) -> DataFrame:
    """The share of the largest rooms, and the Gini coefficient, stream by stream.

    0 when all rooms have as many rows, towards 1 when one has them all.
    """
    # Rooms with as many rows are counted together: there are few different numbers, so the
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
    JobInput(seen=False),
    schema(stream=TEXT, rooms=COUNT, rows=COUNT, largest=NUMBER, top_10=NUMBER, gini=NUMBER),
    Plot(
        PlotKind.BARS, y="gini", series=("stream",), label="Gini coefficient (0 even, 1 one room)"
    ),
    transform,
)
