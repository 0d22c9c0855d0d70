"""Dividing streams into parts around the gap of 10^9 tokens that a failover leaves."""

from __future__ import annotations

from synrepl.pipeline.datasource import register
from synrepl.pipeline.lake.check.check import Extent
from synrepl.pipeline.lake.land.landing import Landing
from synrepl.pipeline.source.plan.chunks import ScanChunk, plan_chunks
from synrepl.positions.vector import PositionVector
from synrepl.storage.incarnations import MARGIN
from system_tests.pipeline.lake_case import LakeCase
from tests.storage.test_failover_sql import PROMOTE


class ScanPlansOverAFailoverGap(LakeCase):
    """Facts below and above the gap, read from the start."""

    def fail_over(self) -> int:
        """The token above which the stream continues."""
        self.sql(PROMOTE)
        self.sql("SELECT synrepl.confirm()")
        return int(self.sql("SELECT floor FROM synrepl._streams WHERE stream = 'notes'"))

    def facts(self, first: int, how_many: int) -> None:
        """Insert facts into the table without gathering statistics."""
        self.sql(
            "INSERT INTO synrepl.notes (stream_id, row_no, writer, text)"
            " SELECT fact, 0, 'sql', 'n' || fact FROM generate_series(%s, %s) AS fact",
            first, first + how_many - 1,
        )  # fmt: skip

    def append(self, how_many: int) -> None:
        """Append facts as processes do."""
        self.sql(
            "SELECT count(synrepl.append('notes', '[{\"text\": \"a\"}]'))"
            " FROM generate_series(1, %s)",
            how_many,
        )

    def parts(self, upto: int, rows: int) -> list[ScanChunk]:
        end = {"notes": PositionVector({}, upto)}
        return list(plan_chunks(self.source, {}, end, {"notes": ["stream_id"]}, rows))

    def counts(self, parts: list[ScanChunk]) -> list[int]:
        """The number of rows of each."""
        on = self.connect()
        return [self.sql(f"SELECT count(*) FROM ({part.sql}) AS rows", on=on) for part in parts]

    async def test_the_gap_gets_no_chunks(self) -> None:
        self.facts(1, 400)
        floor = self.fail_over()
        self.assertGreater(floor, MARGIN)
        self.facts(floor + 1, 400)
        for statistics in False, True:
            if statistics:
                self.sql("ANALYZE synrepl.notes")
                self.source.refresh()
            parts = self.parts(floor + 400, rows=100)
            self.assertLessEqual(len(parts), 32, statistics)
            # No row is left out, not even those that are inserted meanwhile.
            edges = [(part.after, part.upto) for part in parts]
            self.assertEqual((edges[0][0], edges[-1][1]), (0, floor + 400))
            self.assertEqual([upto for _, upto in edges[:-1]], [after for after, _ in edges[1:]])
            found = self.counts(parts)
            self.assertEqual(sum(found), 800)
            self.assertNotIn(0, found)
            self.assertLess(max(found), 400)

    async def test_several_gaps_get_no_chunks(self) -> None:
        at = 0
        for _ in range(4):
            self.facts(at + 1, 50)
            at = self.fail_over()
        found = self.counts(self.parts(at, rows=10))
        self.assertEqual(sum(found), 200)
        self.assertNotIn(0, found)

    async def test_a_stream_without_facts_is_one_part(self) -> None:
        floor = self.fail_over()
        self.assertEqual(len(self.parts(floor, rows=100)), 1)

    async def test_the_gap_gets_no_spark_tasks(self) -> None:
        self.append(40)
        self.fail_over()
        self.append(40)
        register(self.spark)
        reader = self.spark.read.format("synrepl").options(database=self.dsn, stream="notes")
        rows = reader.option("rows_per_partition", "10").load()
        self.assertLessEqual(rows.rdd.getNumPartitions(), 16)
        self.assertEqual(rows.count(), 80)

    async def test_the_gap_gets_no_files_in_a_lake(self) -> None:
        self.append(40)
        floor = self.fail_over()
        self.append(40)
        rounds = []
        with self.lake.write_lock():
            landing = Landing(
                self.spark, self.lake, self.source, self.dsn, task_rows=10, round_rows=30
            )
            rounds += landing.rounds(["notes"])
        self.assertLessEqual(len(rounds), 4)
        table = self.lake.table("notes")
        self.assertGreater(table.position.linear, floor)
        self.assertEqual(sum(file.rows for file in table.files), 80)
        self.assertLessEqual(len(table.files), 16)
        self.assertTrue(self.checked().equal)

    async def test_checked_ranges_around_the_gap_have_similar_sizes(self) -> None:
        self.facts(1, 1000)
        floor = self.fail_over()
        self.facts(floor + 1, 200)
        self.sql("ANALYZE synrepl.notes")
        # One file across the gap, as compaction creates.
        self.land("notes", PositionVector({}, floor + 200))
        self.rewrite("notes", lambda rows: rows.filter([n != 500 for n in range(rows.num_rows)]))
        (report,) = self.checked(Extent(["notes"], range_rows=100)).streams
        self.assertLessEqual(report.ranges, 16)
        (difference,) = report.differences
        self.assertEqual(difference.missing, 1)
        self.assertLessEqual(difference.source_rows, 250)
