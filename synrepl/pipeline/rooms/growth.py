"""Job ``growth``: rooms, members, events, forks and disk by day, with a forecast and its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from synrepl.core.errors import InputError
from synrepl.pipeline.rooms.page.charts import Point, line, short_number
from synrepl.pipeline.rooms.page.document import PageSection, ResultPage
from synrepl.pipeline.rooms.page.result import rows_table
from synrepl.pipeline.rooms.spark_room_job import JobSetting, SettingKind, SparkRoomJob
from synrepl.pipeline.rooms.tables import RoomFrames

#: Days to forecast.
DAYS_AHEAD = 28

#: Days that a forecast is made from; fewer if there are fewer.
_DAYS_BACK = 56

#: At least so many days are needed for a forecast.
_LEAST_DAYS = 8

_DAY_MS = 86_400_000

#: Rows of the page's table.
_SHOWN = 300

#: Bytes of a row besides its texts, with its share of indexes.
_EVENT_OVERHEAD = 600
_ENTRY_OVERHEAD = 200

RESULT = t.StructType(
    [
        t.StructField("measure", t.StringType()),
        t.StructField("day", t.DateType()),
        *(t.StructField(name, t.DoubleType()) for name in ("added", "total", "low", "high")),
        t.StructField("is_forecast", t.BooleanType()),
    ]
)


class NoDaysAhead(InputError):
    """a forecast is for 1 to 3,650 days, not for {days}"""


def room_growth(frames: RoomFrames, days_ahead: int = DAYS_AHEAD) -> DataFrame:
    """One row for each measure and day.

    docs/rooms-on-spark.md has the columns, and how the forecast is made.

    The last day is incomplete if it is today's; it is not used for the forecast.

    :raises NoDaysAhead:
    """
    if not 1 <= days_ahead <= 3_650:
        raise NoDaysAhead(days=days_ahead)
    daily = _daily(frames)
    rows = daily.groupBy("measure", "day").agg(f.sum("added").alias("added"))
    last_day = rows.agg(f.max("day").alias("last_day"))
    return (
        rows.crossJoin(f.broadcast(last_day))
        .groupBy("measure")
        .applyInPandas(lambda rows: _with_forecast(days_ahead, rows), RESULT)
    )


def _daily(frames: RoomFrames) -> DataFrame:
    """What is added by measure and day."""
    day = f.date_from_unix_date(f.floor(f.col("origin_server_ts") / _DAY_MS).cast("int"))
    known = (day >= f.lit("2014-01-01").cast("date")) & (
        day <= f.date_from_unix_date(f.floor(f.unix_timestamp() / 86_400).cast("int"))
    )
    events = frames.events.where("NOT outlier AND NOT rejected").withColumn("day", day).where(known)
    one = f.lit(1.0)
    created = events.where("type = 'm.room.create' AND state_key = ''")
    merges = frames.edges.groupBy("room_id", "event_id").agg(f.count("*").alias("prevs"))
    forks = events.join(merges.where("prevs > 1"), ["room_id", "event_id"], "left_semi")
    size = f.coalesce(f.length("json"), f.lit(0)) + f.length("event_id") * 4 + _EVENT_OVERHEAD
    parts = [
        _added("rooms", created, one),
        _added("events", events, one),
        _added("forks", forks, one),
        _added("event bytes", events, size.cast("double")),
        _members(events),
        _state_bytes(frames, events),
    ]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    return rows


def _added(measure: str, rows: DataFrame, amount: Column) -> DataFrame:
    return rows.select(f.lit(measure).alias("measure"), "day", amount.alias("added"))


def _members(events: DataFrame) -> DataFrame:
    """Joins less leaves, by the order in which the server got the events."""
    joined = (f.get_json_object(f.decode("json", "UTF-8"), "$.content.membership") == "join").cast(
        "double"
    )
    members = events.where("type = 'm.room.member' AND NOT soft_failed")
    of_user = Window.partitionBy("room_id", "state_key").orderBy("stream_ordering")
    changes = members.withColumn("joined", f.coalesce(joined, f.lit(0.0))).withColumn(
        "change", f.col("joined") - f.lag("joined", 1, 0.0).over(of_user)
    )
    return _added("members", changes.where("change <> 0"), f.col("change"))


def _state_bytes(frames: RoomFrames, events: DataFrame) -> DataFrame:
    """The bytes of entries of state groups, on the day of the first event that has the group."""
    first = (
        events.where("state_group IS NOT NULL")
        .groupBy("state_group")
        .agg(f.min("day").alias("day"))
    )
    texts = f.length("type") + f.length("state_key")
    entry = texts * 2 + f.length(f.coalesce("event_id", f.lit(""))) + _ENTRY_OVERHEAD
    entries = frames.state_group_entries.groupBy("state_group").agg(f.sum(entry).alias("bytes"))
    return _added("state bytes", entries.join(first, "state_group"), f.col("bytes").cast("double"))


def _with_forecast(days_ahead: int, rows: pd.DataFrame) -> pd.DataFrame:
    """All days of a measure, with those to come; runs in a task."""
    measure = rows["measure"].iloc[0]
    days = pd.to_datetime(rows["day"])
    every = pd.date_range(days.min(), pd.Timestamp(rows["last_day"].iloc[0]), freq="D")
    added = rows.set_index(days)["added"].reindex(every, fill_value=0.0)
    known = pd.DataFrame({"day": every, "added": added.to_numpy()})
    known["total"] = known["added"].cumsum()
    known["is_forecast"] = False
    is_today = every[-1].date() >= pd.Timestamp.now("UTC").date()
    used = known["added"].to_numpy()[: -1 if is_today else None][-_DAYS_BACK:]
    parts = [known]
    if len(used) >= _LEAST_DAYS:
        parts.append(_forecast(used, float(known["total"].iloc[-1]), every[-1], days_ahead))
    found = pd.concat(parts, ignore_index=True)
    found["measure"] = measure
    found["day"] = found["day"].dt.date
    for bound in "low", "high":
        if bound not in found:
            found[bound] = np.nan
    return found[["measure", "day", "added", "total", "low", "high", "is_forecast"]]


def _forecast(added: np.ndarray, total: float, last: pd.Timestamp, days_ahead: int) -> pd.DataFrame:
    """The random walk with drift: each day adds the mean of the days known, and as much chance as they had.

    Source: https://otexts.com/fpp3/prediction-intervals.html, the drift method.
    """
    steps = np.arange(1, days_ahead + 1)
    mean, spread = float(added.mean()), float(added.std(ddof=1))
    quantile = _t_quantile(len(added) - 1)
    # What never became less will not.
    least = total if (added >= 0).all() else 0.0
    error = quantile * spread * np.sqrt(steps * (1 + steps / len(added)))
    expected = total + mean * steps
    return pd.DataFrame(
        {
            "day": last + pd.to_timedelta(steps, unit="D"),
            "added": mean,
            "total": expected,
            "low": np.maximum(expected - error, least),
            "high": expected + error,
            "is_forecast": True,
        }
    )


def _t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by the expansion of Cornish and Fisher: good from 7 degrees of freedom on."""
    z = 1.959964
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    return room_growth(frames, int(settings.get("days_ahead", DAYS_AHEAD)))


def _page(rows: DataFrame) -> ResultPage:
    measures: dict[str, list[Point]] = {name: [] for name in MEASURES}
    for row in rows.orderBy("day").collect():
        bounds = (row.low, row.high) if row.is_forecast else (None, None)
        measures[row.measure].append(Point(row.day, row.total, *bounds))
    last = {
        name: [point for point in points if point.low is None][-1].value
        for name, points in measures.items()
        if points
    }
    return ResultPage(
        GROWTH.title,
        {name: short_number(value) for name, value in last.items()},
        [
            *(
                PageSection(name, _SENTENCES[name], line(points, name))
                for name, points in measures.items()
                if points
            ),
            PageSection(
                "The last days, and the forecast",
                "Of 20 forecasts, 19 lie between low and high if the coming days are like those before.",
                rows_table(rows.orderBy(f.desc("day"), "measure").limit(_SHOWN)),
            ),
        ],
    )


_SENTENCES = {
    "rooms": "Rooms that exist, in all.",
    "members": "Users in rooms, counted in each room.",
    "events": "Accepted events, in all.",
    "forks": "Events that join branches of a room, in all.",
    "event bytes": "Bytes that events take, estimated.",
    "state bytes": "Bytes that entries of state groups take, estimated, with their index.",
}

#: What is measured, in the order of the page.
MEASURES = tuple(_SENTENCES)

GROWTH = SparkRoomJob(
    "growth",
    "How rooms grow, with a forecast",
    RESULT,
    _run,
    {"days_ahead": JobSetting(SettingKind.NUMBER, f"days to forecast ({DAYS_AHEAD})")},
    _page,
)
