"""``python -m benchmarks lake_times``: one day by a column of timestamps, and what that column costs.

The rows of ``lake_layouts``, in files as compaction writes them (by room) and as landing does (in the order of tokens),
with the computed column ``origin_server_time`` and without it. One day is read by the timestamp and by the milliseconds
from which it is computed, out of the same files, by Spark, deltalake with PyArrow, and polars; and by Spark with a
timestamp that a view computes of the milliseconds, on which nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from benchmarks.harness import Bound, Row, Scale, at_most, interleaved, ratio
from benchmarks.lake_layouts import (
    DAY_MS,
    DAYS,
    FIRST_MS,
    REPETITIONS,
    ROWS,
    SPARK_SCHEMA,
    LayoutCost,
    WantedRows,
    by_file_writer,
    cpu_with_jvm,
    event_rows,
    readers,
    written,
)
from benchmarks.lake_table import scratch
from synrepl.pipeline.lake.computed_columns import SOURCES, TIMESTAMP
from synrepl.pipeline.lake.dataframe import parquet_dataframe
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

((_TIME, _MS),) = SOURCES.items()

#: What a day by the timestamp may cost, as a part of the same day by the milliseconds.
_BOUND = at_most(1.2)


def run(scale: Scale) -> Iterator[Row]:
    """Write the tables, and read a day of each."""
    rows = event_rows(scale.of(ROWS))
    options = SessionOptions(master="local[2]", driver_memory="1g")
    with scratch() as folder, open_session(options) as spark:
        for layout, by_room in ("rooms", True), ("tokens", False):
            yield from _costs(folder, layout, rows, by_room)
            for name, read in readers(spark).items():
                found = _timed(
                    {each: partial(read, day, folder / layout) for each, day in _day().items()}
                )
                yield _figure(f"{layout}: one day, {name}", found["time"], found["ms"], _BOUND)
            found = _timed(
                {
                    "view": partial(_by_view, spark, folder / layout),
                    "ms": partial(readers(spark)["Spark"], _day()["ms"], folder / layout),
                }
            )
            yield _figure(f"{layout}: one day, Spark by a view", found["view"], found["ms"], None)


def _costs(folder: Path, layout: str, rows: pa.Table, by_room: bool) -> Iterator[Row]:
    """Write a table with the column, and one without it."""
    schema = rows.schema.append(pa.field(_TIME, TIMESTAMP))
    ours = _written(folder / layout, rows, schema, by_room)
    other = _written(folder / f"{layout}-without", rows, rows.schema, by_room)
    yield ratio(
        f"{layout}: bytes", [ours.bytes], [other.bytes], of="without the column",
        measured_in="bytes a row", bound=at_most(1.05), scale=1 / len(rows),
    )  # fmt: skip
    yield ratio(
        f"{layout}: writing", [ours.cpu], [other.cpu], of="without the column",
        measured_in="ns of CPU a row", bound=None, scale=1e9 / len(rows),
    )  # fmt: skip


def _written(path: Path, rows: pa.Table, schema: pa.Schema, by_room: bool) -> LayoutCost:
    return written(partial(by_file_writer, by_room, schema=schema), path, rows, schema)


def _day() -> Mapping[str, WantedRows]:
    """One day, by either column."""
    low = FIRST_MS + DAYS // 2 * DAY_MS
    high = low + DAY_MS - 1
    times = (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms) for ms in (low, high))
    return {"time": WantedRows(_TIME, *times), "ms": WantedRows(_MS, low, high)}


def _timed(sides: Mapping[str, Callable[[], int]]) -> dict[str, list[float]]:
    """CPU seconds of each side, which have to find the same rows."""
    answers: set[int] = set()

    def timed(read: Callable[[], int]) -> float:
        before = cpu_with_jvm()
        answers.add(read())
        return cpu_with_jvm() - before

    found = interleaved({name: partial(timed, read) for name, read in sides.items()}, REPETITIONS)
    if len(answers) != 1 or 0 in answers:
        raise AssertionError(f"not the same rows: {answers}")
    return found


def _by_view(spark: SparkSession, path: Path) -> int:
    """One day by a timestamp that is computed as the rows are read."""
    day = _day()["time"]
    rows = parquet_dataframe(spark, SPARK_SCHEMA, [str(each) for each in path.glob("*.parquet")])
    rows = rows.withColumn("seen", f.timestamp_millis(_MS))
    rows = rows.where(f.col("seen").between(f.lit(day.low), f.lit(day.high)))
    return int(rows.agg(f.sum(f.length("json"))).collect()[0][0])


def _figure(name: str, ours: list[float], other: list[float], bound: Bound | None) -> Row:
    return ratio(
        name,
        ours,
        other,
        of="by the milliseconds",
        measured_in="ms of CPU",
        bound=bound,
        scale=1000,
    )
