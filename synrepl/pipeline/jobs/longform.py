"""Rows of any streams in a common form.

| column | |
|---|---|
| stream | its name |
| token | the stream ID; negated where the stream counts down |
| row_no | index in the fact |
| writer | the writer's name |
| room_id, user_id | the room and the user that it is about; null if the row does not contain them |
| at_ms | the row's own time, in ms since the epoch; null if it has none |
| seen_ms | when it was first on record or landed, in ms since the epoch, by the lake's watermarks; null if it is older than the first of them or newer than the last |

and the columns that a job requests. See :mod:`.rules` for where rooms, users and times are.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.core.errors import InputError
from synrepl.pipeline.jobs.column_rules import ROOM, USER, text_expression, time_expression
from synrepl.pipeline.jobs.job import JobInput
from synrepl.pipeline.jobs.seen_times import seen_times
from synrepl.pipeline.lake.dataframe import table_dataframe
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.watermarks import SCHEMA as MARKS
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.database.whole_events import BASES, has_whole_events
from synrepl.pipeline.source.reading.schema import spark_schema

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000


class NothingToRead(InputError):
    """the lake {path} has none of the streams that are wanted ({wanted}); it has {streams}; land them first"""


def streams_for(lake: Lake, job_input: JobInput) -> list[str]:
    """The streams of a lake that a job reads.

    Streams of whole events are read if there are no others: their rows are facts of other streams.

    :raises NothingToRead: no such stream is in the lake
    """
    there = lake.streams
    facts = [
        name
        for name in there
        if name not in BASES or not has_whole_events(lake.table(name).stream_schema)
    ]
    names = (
        facts or there
        if job_input.streams is None
        else [name for name in job_input.streams if name in there]
    )
    if not names:
        wanted = "any" if job_input.streams is None else ", ".join(job_input.streams)
        raise NothingToRead(path=lake.path, wanted=wanted, streams=", ".join(there) or "none")
    return names


def longform(spark: SparkSession, lake: Lake, job_input: JobInput) -> DataFrame:
    """The rows that a job reads; use them within :meth:`.Lake.read_lock`.

    :raises NothingToRead: no such stream is in the lake
    """
    names = streams_for(lake, job_input)
    when = seen_times(Watermarks(lake).table() if job_input.needs_seen_ms else MARKS.empty_table())
    tables = [lake.table(name) for name in sorted(names)]
    # Spark would start tasks for empty tables, too.
    filled = [table for table in tables if table.files] or tables[:1]
    parts = [_of(spark, table, job_input, when.widths.get(table.stream)) for table in filled]
    rows = reduce(DataFrame.unionByName, parts)
    if not when.widths:
        return rows.drop("slot").withColumn("seen_ms", f.lit(None).cast("bigint"))
    spans = f.broadcast(spark.createDataFrame(when.spans))
    within = (f.col("token") > f.col("after")) & (f.col("token") <= f.col("upto"))
    same = [rows[name] == spans[name] for name in ("stream", "slot")]
    found = rows.join(spans, [*same, within], "left")
    return found.select(*(rows[name] for name in rows.columns if name != "slot"), "seen_ms")


def happened_ms() -> Column:
    """The best known time of a row: its own, otherwise when it was first seen; ms since the epoch."""
    return f.coalesce("at_ms", "seen_ms")


def day(ms: Column) -> Column:
    """The UTC date of a time in ms, whatever the session's time zone is."""
    return f.date_from_unix_date(f.floor(ms / _DAY_MS).cast("int"))


def hour(ms: Column) -> Column:
    """The beginning of the hour of a time in ms."""
    return f.timestamp_millis(ms - f.pmod(ms, f.lit(_HOUR_MS)))


def _of(
    spark: SparkSession, table: StreamTable, job_input: JobInput, width: int | None
) -> DataFrame:
    stream_schema = table.stream_schema
    own = {(column.name, column.type) for column in stream_schema.columns}
    more = [
        (f.col(column.name) if (column.name, column.type) in own else f.lit(None))
        .cast(field.dataType)
        .alias(column.name)
        for column, field in zip(job_input.columns, spark_schema(job_input.columns), strict=True)
    ]
    token = "-stream_id" if stream_schema.counts_down else "stream_id"
    return table_dataframe(spark, table).select(
        f.lit(stream_schema.stream).alias("stream"),
        f.expr(token).alias("token"),
        "row_no",
        "writer",
        f.expr(text_expression(ROOM, stream_schema)).alias("room_id"),
        f.expr(text_expression(USER, stream_schema)).alias("user_id"),
        f.expr(time_expression(stream_schema)).alias("at_ms"),
        f.expr("CAST(NULL AS bigint)" if width is None else f"{token} div {width}").alias("slot"),
        *more,
    )
