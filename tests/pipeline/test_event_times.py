"""The time of whole events as a timestamp in the tables of a lake, landed and read without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from twisted.trial.unittest import SynchronousTestCase

from simulator.rooms.random_rooms import RandomRoom
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake import table as stream_table
from synrepl.pipeline.lake.check.check import Extent, check
from synrepl.pipeline.lake.check.report import Outcome
from synrepl.pipeline.lake.column_ranges import in_log
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.computed_columns import (
    END_MS,
    FIRST_MS,
    TIMESTAMP,
    as_in_file,
    computed_columns,
)
from synrepl.pipeline.lake.data_files import is_by_room
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.erase.pending import pending
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing
from synrepl.pipeline.lake.maintenance import LakeMaintenance
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.table_log import LOG
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.streams.columns import Column, ColumnType
from tests.storage.rooms.store_case import StoreCase

STREAM = "room_events"
MS, TIME = "origin_server_ts", "origin_server_time"

#: The first of three days, each of which is landed into a file of its own.
FIRST_DAY = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)

#: What servers may say, with what no timestamp has.
SAID = (
    *(0, -1, 1, FIRST_MS, FIRST_MS - 1, END_MS - 1, END_MS),
    *(2**63 - 1, -(2**63), 2**63 // 1000, -(2**63) // 1000),
)


def time_of(ms: int | None) -> datetime | None:
    """The time that a row should have."""
    if ms is None or not FIRST_MS <= ms < END_MS:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def no_session() -> NoReturn:
    raise AssertionError("there is no session of Spark")


def by_deltalake(path: str, since: datetime, until: datetime) -> list[int]:
    """The stream IDs of the rows between two times."""
    between = (pc.field(TIME) >= since) & (pc.field(TIME) < until)
    found = DeltaTable(path).to_pyarrow_dataset().to_table(columns=["stream_id"], filter=between)
    return sorted(found.column(0).to_pylist())


def by_polars(path: str, since: datetime, until: datetime) -> list[int]:
    """The stream IDs of the rows between two times."""
    between = (polars.col(TIME) >= since) & (polars.col(TIME) < until)
    return sorted(polars.scan_delta(path).filter(between).collect()["stream_id"].to_list())


#: By reader, what it reads between two times.
READERS: Mapping[str, Callable[[str, datetime, datetime], list[int]]] = {
    "deltalake": by_deltalake,
    "polars": by_polars,
}


class EventTimesCase(StoreCase):
    """A lake of a room's events."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.made = RandomRoom(Random(5), "10", "landed")
        await self.persist(11)
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(self.source.close)
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)
        self.session = SessionOnDemand(no_session)
        self.maintenance = LakeMaintenance(self.session, self.lake, self.source, self.dsn)

    async def persist(self, count: int) -> None:
        """Persist some more events."""
        known = len(self.made.events)
        self.made.more(count)
        new = self.made.events[known:] if self.persisted else self.made.events
        self.persisted = True
        await self.one.persist(self.made.room_id, self.made.version, new)

    persisted = False

    def say(self, *times: int) -> None:
        """Let servers have said these times, of the newest events."""
        for at, ms in enumerate(times):
            self.sql(
                "UPDATE synrepl._room_events SET origin_server_ts = %s WHERE event_no ="
                " (SELECT event_no FROM synrepl._room_events ORDER BY stream_id DESC LIMIT 1 OFFSET %s)",
                ms,
                at,
            )

    def land(self) -> None:
        """Land without compaction."""
        landing = Landing(self.session, self.lake, self.source, self.dsn)
        with self.lake.write_lock():
            [*landing.rounds(self.source.streams)]

    async def land_three_days(self) -> None:
        """Land a file of each day, and one whose events have no time."""
        for day in range(3):
            self.sql(
                "UPDATE synrepl._room_events SET origin_server_ts = %s + stream_id",
                int((FIRST_DAY + day * DAY).timestamp()) * 1000,
            )
            self.land()
            await self.persist(4)
        self.sql("UPDATE synrepl._room_events SET origin_server_ts = %s", 2**60)
        self.land()
        self.assertEqual(len(self.lake.table(STREAM).files), 4)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table, as deltalake reads them."""
        return DeltaTable(str(self.lake.table(STREAM).path)).to_pyarrow_table().to_pylist()

    def assert_times(self) -> None:
        """Check that each row has its time."""
        rows = self.rows()
        self.assertGreater(len(rows), 0)
        self.assertEqual([row[TIME] for row in rows], [time_of(row[MS]) for row in rows])

    def assert_checked(self) -> None:
        """Compare the lake with the database."""
        with self.lake.write_lock():
            known = pending(self.session, self.source, self.lake).known
            masking = partial(mask, erasures=known)
            extent = Extent(streams=[STREAM])
            found = check(self.session, self.lake, self.source, self.dsn, extent, mask=masking)
        (report,) = found.streams
        self.assertEqual((report.outcome, report.lake_rows), (Outcome.EQUAL, len(self.rows())))


class TimesOfEvents(EventTimesCase):
    """Tables that have the time."""

    async def test_every_row_has_the_time_of_its_milliseconds_if_there_is_one(self) -> None:
        self.say(*SAID)
        self.sql("DELETE FROM synrepl._room_events WHERE stream_id = 1")  # it was purged
        self.land()
        table = self.lake.table(STREAM)
        rows = {row["stream_id"]: row for row in self.rows()}
        self.assertLess({*SAID, None}, {row[MS] for row in rows.values()})
        want = {stream_id: time_of(row[MS]) for stream_id, row in rows.items()}
        self.assertEqual(len([each for each in want.values() if each is None]), 7)
        self.assertEqual({stream_id: row[TIME] for stream_id, row in rows.items()}, want)
        by_polars = polars.scan_delta(str(table.path)).collect()
        self.assertEqual(by_polars.schema[TIME], polars.Datetime("us", "UTC"))
        self.assertEqual(dict(by_polars.select("stream_id", TIME).iter_rows()), want)
        (file,) = table.files
        by_pyarrow = pq.read_table(table.path_of(file))
        self.assertEqual(by_pyarrow.schema.field(TIME).type, TIMESTAMP)
        self.assertEqual(
            dict(zip(*(by_pyarrow[each].to_pylist() for each in ("stream_id", TIME)), strict=True)),
            want,
        )
        # Whoever reads nanoseconds can read all of it.
        self.assertEqual(by_pyarrow.column(TIME).cast(pa.timestamp("ns", "UTC")).null_count, 7)
        self.assert_checked()

    async def test_readers_open_only_the_files_that_may_have_a_day(self) -> None:
        await self.land_three_days()
        table = self.lake.table(STREAM)
        second = FIRST_DAY + DAY
        want = sorted(
            row["stream_id"]
            for row in self.rows()
            if row[TIME] and second <= row[TIME] < second + DAY
        )
        self.assertEqual(len(want), 4)
        # Readers may open the last file: where all values are null, polars does not go by their number.
        for file in (table.files[0], table.files[2]):
            path = table.path_of(file)
            assert isinstance(path, Path)
            path.unlink()
        for reader, read in READERS.items():
            self.assertEqual(read(str(table.path), second, second + DAY), want, reader)
            self.assertRaises(FileNotFoundError, read, str(table.path), FIRST_DAY, second)

    async def test_readers_find_rows_without_a_time(self) -> None:
        await self.land_three_days()
        path = str(self.lake.table(STREAM).path)
        rows = DeltaTable(path).to_pyarrow_dataset()
        self.assertEqual(rows.to_table(filter=pc.field(TIME).is_null()).num_rows, 4)
        found = polars.scan_delta(path).filter(polars.col(TIME).is_null()).collect()
        self.assertEqual(found.height, 4)

    async def test_the_log_has_the_extremes_in_milliseconds(self) -> None:
        first = FIRST_DAY + timedelta(milliseconds=7)
        self.sql("UPDATE synrepl._room_events SET origin_server_ts = %s", 0)
        self.say(int(FIRST_DAY.timestamp()) * 1000 + 7, -(2**63))
        self.land()
        table = self.lake.table(STREAM)
        assert isinstance(table.path, Path)
        commits = sorted((table.path / LOG).glob("*.json"))
        actions = [json.loads(line) for line in commits[-1].read_text().splitlines()]
        (added,) = (json.loads(each["add"]["stats"]) for each in actions if "add" in each)
        self.assertEqual(added["minValues"][TIME], "1970-01-01T00:00:00.000Z")
        self.assertEqual(added["maxValues"][TIME], "2026-11-01T00:00:00.007Z")
        self.assertEqual(added["nullCount"][TIME], 1)
        (file,) = table.files
        (found,) = (each for each in file.ranges if each.column == TIME)
        self.assertEqual(found[1:], (datetime(1970, 1, 1, tzinfo=UTC), first, 1))

    async def test_compaction_keeps_the_time_in_files_by_room_too(self) -> None:
        await self.land_three_days()
        before = [(row["stream_id"], row[TIME]) for row in self.rows()]
        size = sum(file.size for file in self.lake.table(STREAM).files)
        with self.lake.write_lock():
            compact(self.session, self.lake, STREAM, target=2 * size, full=True)
        table = self.lake.table(STREAM)
        (file,) = table.files
        self.assertTrue(is_by_room(table.path_of(file)))
        self.assert_times()
        self.assertCountEqual([(row["stream_id"], row[TIME]) for row in self.rows()], before)
        (found,) = (each for each in file.ranges if each.column == TIME)
        self.assertEqual(found.nulls, 4)

    async def test_erasure_keeps_the_time(self) -> None:
        self.say(*SAID)
        self.land()
        self.sql("SELECT synrepl.erase(%s)", self.made.events[0].sender)
        before = [row[TIME] for row in self.rows()]
        with self.lake.write_lock():
            report = self.maintenance.run([STREAM], settle_timeout_s=0)
        self.assertGreater(report.erased.files, 0)
        self.assertIn(None, [row["sender"] for row in self.rows()])
        self.assertEqual([row[TIME] for row in self.rows()], before)
        self.assert_times()
        self.assert_checked()


class OlderTables(EventTimesCase):
    """A table of a release that had no computed columns."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        older = self.patch(stream_table, "computed_columns", lambda stream_schema: ())
        self.land()
        older.restore()

    async def test_stay_without_the_time_and_land_and_check(self) -> None:
        await self.persist(4)
        self.land()
        with self.lake.write_lock():
            compact(self.session, self.lake, STREAM, full=True)
        self.sql("SELECT synrepl.erase(%s)", self.made.events[0].sender)
        await self.persist(4)
        with self.lake.write_lock():
            self.maintenance.run([STREAM], settle_timeout_s=0)
        table = self.lake.table(STREAM)
        for file in table.files:
            self.assertNotIn(TIME, pq.read_schema(table.path_of(file)).names)
        rows = self.rows()
        self.assertEqual(len(rows), len(self.made.events))
        self.assertNotIn(TIME, rows[0])
        self.assertIn(MS, rows[0])
        self.assert_checked()


class ComputedCells(SynchronousTestCase):
    """Computing the cells of a column."""

    def test_a_column_of_that_name_and_another_type_is_the_streams_own(self) -> None:
        schema = pa.schema({MS: pa.int64(), TIME: pa.int64()})
        batch = pa.RecordBatch.from_pydict({MS: [1], TIME: [2]})
        self.assertEqual(as_in_file(batch, schema).to_pydict(), {MS: [1], TIME: [2]})

    def test_other_streams_have_no_computed_columns(self) -> None:
        said = Column(MS, ColumnType.BIGINT, True)
        self.assertEqual(computed_columns(StreamSchema("said", False, (said,))), ())

    def test_extremes_are_written_as_the_log_has_them(self) -> None:
        self.assertEqual(in_log(-5), -5)
        self.assertEqual(in_log(datetime(1900, 1, 1, tzinfo=UTC)), "1900-01-01T00:00:00.000Z")
