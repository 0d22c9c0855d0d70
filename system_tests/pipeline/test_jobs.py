"""Jobs over lakes, with real Spark, compared with reference results in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from twisted.trial.unittest import TestCase

from synrepl.pipeline.jobs.catalogue import JOBS, find_job
from synrepl.pipeline.jobs.run import run_job
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.storage.position_marks import PositionMark
from synrepl.streams.columns import Column, ColumnType
from system_tests.pipeline import job_reference as reference
from system_tests.pipeline.spark_fixture import shared_session
from tests.pipeline.synthetic_lake import add, begin, foreign_rows, schema_of
from tests.storage.foreign_databases import foreign_database

#: 2025-06-15 12:00 UTC.
NOON = 1_749_988_800
DAY = 86_400

ORDERS = StreamSchema(
    "orders",
    False,
    (
        Column("sender", ColumnType.TEXT, False),
        Column("origin_server_ts", ColumnType.BIGINT, True),
        # Names that other streams use, with other types.
        Column("room_id", ColumnType.TEXT_ARRAY, True),
        Column("cache_func", ColumnType.BIGINT, True),
    ),
)


def hours(row: Row) -> int:
    """Hours from the epoch to the hour of a row; Spark returns times in this process's zone."""
    return int(row.hour.astimezone(UTC).timestamp()) // 3600


class Answers:
    """The results of all jobs on one lake, each run once."""

    def __init__(self, lake: Lake) -> None:
        with lake.read_lock():
            self._found = {job.name: run_job(shared_session(), lake, job).collect() for job in JOBS}

    def __getitem__(self, job: str) -> list[Row]:
        return self._found[job]

    def check(self, case: TestCase, streams: reference.Streams, marks: reference.Marks) -> None:
        """Compare all results with the reference."""
        found = list(reference.lines(streams, marks))
        case.assertEqual(
            {(r.day, r.stream, r.writer): (r.rows, r.rooms, r.users) for r in self["activity"]},
            reference.activity(found),
        )
        case.assertEqual(
            {(hours(r), r.stream, r.writer): (r.rows, r.unseen, r.worst_s) for r in self["lag"]},
            reference.lag(found),
        )
        case.assertEqual(
            {(r.room_id, r.day): r.rows for r in self["rooms"]}, reference.rooms(found)
        )
        case.assertEqual(
            {(hours(r), r.cache, r.writer): (r.rows, r.whole) for r in self["heat"]},
            reference.heat(found),
        )
        skew = reference.skew(found)
        case.assertEqual({r.stream for r in self["skew"]}, skew.keys())
        for row in self["skew"]:
            _, *numbers = row
            for number, wanted in zip(numbers, skew[row.stream], strict=True):
                case.assertAlmostEqual(number, wanted, 12, row.stream)

    def check_sums(self, case: TestCase, streams: reference.Streams) -> None:
        """Check sums that do not depend on the watermarks."""
        counts = {stream: len(rows) for stream, rows in streams.items() if rows}
        by_stream: Counter[str] = Counter()
        for row in self["activity"]:
            by_stream[row.stream] += row.rows
            case.assertLessEqual(max(row.rooms, row.users), row.rows)
        case.assertEqual(by_stream, counts)
        case.assertEqual(sum(row.rows for row in self["heat"]), counts["caches"])
        in_rooms = sum(row.rows for row in self["rooms"])
        case.assertEqual(sum(row.rows for row in self["skew"]), in_rooms)
        last = {row.room_id: (row.total, row.all_days) for row in self["rooms"]}
        case.assertEqual(sum(total for total, _ in last.values()), in_rooms)
        case.assertEqual([total for total, _ in last.values()], [days for _, days in last.values()])
        for row in self["lag"]:
            if row.unseen < row.rows:
                case.assertLessEqual(row.median_s, row.p95_s)
                case.assertLessEqual(row.p95_s, row.worst_s)


def written() -> dict[str, list[dict[str, Any]]]:
    """Random rows of a few days, from a fixed seed."""
    chance = random.Random(7)
    room = [f"!r{n}:x" for n in range(30)]
    weights = [1 / (n + 1) for n in range(30)]
    user = [f"@u{n}:x" for n in range(12)]
    writers = ("w1", "w2")
    kinds = [chance.choice(("m.room.member", "m.room.message")) for _ in range(3000)]
    events = [
        {
            "stream_id": n // 2 + 1,
            "row_no": n % 2,
            "writer": writers[n // 2 % 2],
            "kind": "ev",
            "event_id": f"${n}",
            "room_id": chance.choices(room, weights)[0],
            "type": kind,
            "state_key": chance.choice(user) if kind == "m.room.member" else "@nobody:x",
        }
        for n, kind in enumerate(kinds)
    ]
    backfill = [
        {"stream_id": -n, "event_id": f"$b{n}", "room_id": room[n % 7], "type": "m.room.message"}
        for n in range(1, 101)
    ]
    caches = [
        {
            "stream_id": 3 * n + 1,
            "writer": chance.choice(writers),
            "cache_func": chance.choice(("cs_cache_fake", "get_user", "get_device")),
            "keys": chance.choice((None, f'["{chance.choice(room)}", "{chance.choice(user)}"]')),
            "invalidation_ts": 1000 * (NOON + 60 * n) + chance.randrange(1000),
        }
        for n in range(1500)
    ]
    receipts = [
        {
            "stream_id": n,
            "room_id": chance.choice(room),
            "user_id": chance.choice(user),
            "data": data,
        }
        for n, data in enumerate(
            [
                f'{{"ts": {1000 * (NOON + 500)}}}',
                '{"ts": 0}',
                '{"ts": 1000000000000000}',
                '{"ts": 9223372036854775807}',
                '{"ts": 18446744073709551616}',
                '{"ts": "soon"}',
                '{"ts": null}',
                "{}",
                f'{{"hidden": true, "ts": {1000 * (NOON + 3 * DAY)}}}',
            ],
            1,
        )
    ]
    devices = [
        {"stream_id": n, "entity": chance.choice((*user, "elsewhere.org"))} for n in range(1, 60)
    ]
    presence = [
        {"stream_id": 1, "user_id": user[0], "last_active_ts": 1000 * (NOON + DAY)},
        {"stream_id": 2, "user_id": user[0], "last_active_ts": 0, "last_user_sync_ts": 0},
    ]
    orders = [{"stream_id": n, "sender": user[n % 3]} for n in range(1, 10)]
    return {
        "events": events,
        "backfill": backfill,
        "caches": caches,
        "receipts": receipts,
        "device_lists": devices,
        "presence": presence,
        "orders": orders,
        "push_rules": [],
    }


def marked(marks: reference.Marks) -> dict[str, list[PositionMark]]:
    """Watermarks in the form that a lake imports."""
    found: dict[str, list[PositionMark]] = {}
    for stream, token, at in marks:
        found.setdefault(stream, []).append(PositionMark(at, token))
    return found


class JobsOverSyntheticRows(TestCase):
    """Jobs over generated rows with times."""

    def test_all_jobs_match_the_reference(self) -> None:
        lake = begin(Path(self.mktemp()))
        streams = written()
        for stream, rows in streams.items():
            stream_schema = ORDERS if stream == "orders" else schema_of(stream)
            add(lake, stream_schema, rows, files=3) if rows else lake.ensure_table(stream_schema)
        marks: reference.Marks = [
            ("events", 200 + 100 * n, NOON + DAY / 3 * n + 0.5) for n in range(12)
        ]
        marks += [("backfill", token, NOON + token * 1000) for token in (0, 10, 60, 100)]
        marks += [("caches", 3 * 60 * n, NOON + 3600 * n + 30) for n in range(1, 24)]
        marks += [("receipts", 1, NOON), ("receipts", 9, NOON + 3 * DAY + 10)]
        marks += [("orders", 4, NOON), ("orders", 8, NOON + DAY)]
        self.assertEqual(Watermarks(lake).import_marks(marked(marks)), len(marks))
        answers = Answers(lake)
        answers.check(self, streams, marks)
        answers.check_sums(self, streams)

        lag = {(row.stream, hours(row) - NOON // 3600): row for row in answers["lag"]}
        self.assertEqual(lag["receipts", 72].worst_s, 10.0)
        self.assertEqual(lag["receipts", 0].unseen, 1)  # written before the first watermark
        largest = answers["rooms"][0]
        self.assertEqual((largest.room_id, largest.day), ("!r0:x", None))
        self.assertEqual(
            [row.all_days for row in answers["rooms"]],
            sorted((row.all_days for row in answers["rooms"]), reverse=True),
        )


class JobsOverARealSynapse(TestCase):
    """Jobs over the tables of a real Synapse."""

    async def test_all_jobs_match_the_reference(self) -> None:
        found = foreign_rows(await foreign_database("1.163.2"))
        lake = begin(Path(self.mktemp()))
        for stream_schema, rows in found.values():
            if rows:
                add(lake, stream_schema, rows, files=2)
        streams = {stream: rows for stream, (_, rows) in found.items()}
        now = 1_795_168_400.0  # the time at which they were recorded
        marks: reference.Marks = [("events", 60 * n, now + 20 * n) for n in range(1, 11)]
        marks += [("caches", 48 * n, now + 20 * n) for n in range(1, 11)]
        marks += [("receipts", 5 * n, now + 140 + n) for n in range(1, 10)]
        marks += [("backfill", 20, now + 60), ("backfill", 40, now + 2 * DAY)]
        Watermarks(lake).import_marks(marked(marks))
        answers = Answers(lake)
        answers.check(self, streams, marks)
        answers.check_sums(self, streams)


class JobsWithoutWatermarks(TestCase):
    def test_days_of_rows_without_a_time_are_unknown(self) -> None:
        lake = begin(Path(self.mktemp()))
        streams = {name: rows for name, rows in written().items() if name in ("events", "caches")}
        for stream, rows in streams.items():
            add(lake, schema_of(stream), rows)
        activity = run_job(shared_session(), lake, find_job("activity")).collect()
        self.assertEqual({row.day for row in activity if row.stream == "events"}, {None})
        days = {row.day for row in reference.lines({"caches": streams["caches"]}, [])}
        self.assertEqual({row.day for row in activity if row.stream == "caches"}, days)
        lag = run_job(shared_session(), lake, find_job("lag")).collect()
        self.assertEqual(sum(row.unseen for row in lag), len(streams["caches"]))
        self.assertEqual({(row.median_s, row.worst_s) for row in lag}, {(None, None)})


class JobsInTimeZones(TestCase):
    def test_days_and_hours_are_of_utc(self) -> None:
        spark = shared_session()
        lake = begin(Path(self.mktemp()))
        row = {"cache_func": "a", "keys": "[]"}
        ends = [NOON + DAY // 2 - 1, NOON + DAY // 2]
        add(
            lake,
            schema_of("caches"),
            [{"stream_id": n, **row, "invalidation_ts": 1000 * at} for n, at in enumerate(ends, 1)],
        )
        zone = spark.conf.get("spark.sql.session.timeZone")
        self.addCleanup(spark.conf.set, "spark.sql.session.timeZone", zone)
        # Offset by half an hour: neither days nor hours begin with those of UTC.
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        self.assertEqual(
            [str(row.day) for row in run_job(spark, lake, find_job("activity")).collect()],
            ["2025-06-15", "2025-06-16"],
        )
        ms = run_job(spark, lake, find_job("heat")).selectExpr("unix_millis(hour) AS ms").collect()
        self.assertEqual([row.ms for row in ms], [1000 * (ends[1] - 3600), 1000 * ends[1]])
