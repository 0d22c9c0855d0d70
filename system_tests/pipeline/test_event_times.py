"""The time of whole events as a timestamp, read by Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from synrepl.pipeline import create_views
from synrepl.pipeline.lake.check.check import Extent, check
from synrepl.pipeline.lake.failover.drop_lost import drop_lost
from synrepl.pipeline.lake.repair import find_damaged, repair
from system_tests.pipeline.spark_fixture import shared_session
from tests.pipeline.test_event_times import (
    DAY,
    FIRST_DAY,
    MS,
    SAID,
    STREAM,
    TIME,
    EventTimesCase,
    time_of,
)
from tests.storage.failover import FailoverCase


class EventTimesInSpark(EventTimesCase):
    timeout = 600

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.spark = shared_session()

    def view(self) -> DataFrame:
        """The rows as ``create_views`` gives them."""
        create_views(self.spark, self.lake.path, [STREAM])
        self.addCleanup(self.spark.catalog.dropTempView, STREAM)
        return self.spark.table(STREAM)

    def damage_values(self, number: int) -> None:
        """Damage the times in one of the files, in the order of tokens, but not their statistics."""
        table = self.lake.table(STREAM)
        path = table.path_of(table.files[number])
        assert isinstance(path, Path)
        group = pq.read_metadata(path).row_group(0)
        (column,) = (
            found
            for found in map(group.column, range(group.num_columns))
            if found.path_in_schema == TIME
        )
        whole, begin = path.read_bytes(), column.data_page_offset
        end = begin + column.total_compressed_size
        path.write_bytes(whole[:begin] + b"\xff" * (end - begin) + whole[end:])

    async def test_views_have_the_time_of_every_row(self) -> None:
        self.say(*SAID)
        self.land()
        view = self.view()
        self.assertEqual(view.schema[TIME].dataType, t.TimestampType())
        found = view.select(MS, TIME).toArrow().to_pylist()
        self.assertLess({*SAID}, {row[MS] for row in found})
        self.assertEqual([row[TIME] for row in found], [time_of(row[MS]) for row in found])
        # No time that a server says makes rows unreadable.
        self.assertEqual(len(view.select(TIME).collect()), len(found))
        self.assertEqual(view.select(TIME).toPandas()[TIME].isna().sum(), 6)

    async def test_a_condition_on_the_time_reads_only_what_may_have_it(self) -> None:
        await self.land_three_days()
        second = FIRST_DAY + DAY
        want = [
            row["stream_id"]
            for row in self.rows()
            if row[TIME] and second <= row[TIME] < second + DAY
        ]
        self.assertEqual(len(want), 4)
        view = self.view()
        self.damage_values(0)
        self.damage_values(2)

        def between(since: Any, until: Any) -> list[int]:
            found = view.where(
                f"{TIME} >= TIMESTAMP '{since:%Y-%m-%d}' AND {TIME} < TIMESTAMP '{until:%Y-%m-%d}'"
            )
            return [row[0] for row in found.select("stream_id", TIME).collect()]

        self.assertCountEqual(between(second, second + DAY), want)
        with self.assertRaises((PySparkException, Py4JError)):
            between(second - timedelta(hours=1), second + DAY)

    async def test_the_time_is_there_again_after_a_repair(self) -> None:
        self.say(*SAID)
        self.land()
        before = self.rows()
        table = self.lake.table(STREAM)
        for file in table.files:
            path = table.path_of(file)
            assert isinstance(path, Path)
            path.unlink()
        with self.lake.write_lock():
            damaged = find_damaged(self.lake, [STREAM])
            repair(self.spark, self.lake, self.source, self.dsn, damaged)
        self.assertEqual(self.rows(), before)
        self.assert_times()

    async def test_a_check_by_spark_compares_the_columns_of_the_stream(self) -> None:
        self.say(*SAID)
        self.land()
        with self.lake.write_lock():
            extent = Extent(streams=[STREAM], rows_here=-1)
            report = check(self.spark, self.lake, self.source, self.dsn, extent)
        self.assertEqual((report.problems, report.equal), ([], True))


class EventTimesAfterAFailover(EventTimesCase, FailoverCase):
    """Dropping rows that the database has lost."""

    timeout = 600

    async def test_the_rows_that_stay_keep_the_time(self) -> None:
        self.say(*SAID)
        await self.disconnect()
        await self.persist(4)
        self.land()
        before = self.rows()
        await self.one.writer.stop()
        self.fail_over()
        self.sql("SELECT synrepl.confirm()")
        with self.lake.write_lock():
            dropped = drop_lost(shared_session(), self.lake, self.source, self.dsn, [STREAM])
        self.assertEqual(sum(each.rows for each in dropped[STREAM]), 4)
        kept = self.rows()
        self.assertEqual(kept, before[: len(kept)])
        self.assertEqual(len(kept), len(before) - 4)
        self.assert_times()
