"""Which files compaction merges."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.pipeline.lake.compact.compact import GROWTH, plan_compaction
from synrepl.pipeline.lake.data_files import DataFile

TARGET = 1000


def file(low: int, rows: int, size: int, high: int | None = None) -> DataFile:
    return DataFile(f"{low}.parquet", size, rows, low, low + rows - 1 if high is None else high)


def run(*sizes: int) -> list[DataFile]:
    """Adjacent files with one byte per row."""
    files: list[DataFile] = []
    for size in sizes:
        files.append(file(files[-1].high + 1 if files else 1, size, size))
    return files


def lows(groups: Sequence[Sequence[DataFile]]) -> list[list[int]]:
    return [[each.low for each in group] for group in groups]


def joined(group: Sequence[DataFile]) -> DataFile:
    rows = sum(each.rows for each in group)
    low = min(each.low for each in group)
    return DataFile(f"j{low}-{rows}", sum(each.size for each in group), rows, low, group[-1].high)


class CompactionPolicy(TestCase):
    def test_no_files_give_no_groups(self) -> None:
        self.assertEqual(plan_compaction([], TARGET), [])
        self.assertEqual(plan_compaction(run(5), TARGET), [])
        self.assertEqual(plan_compaction(run(500, 900, 5000), TARGET, full=True), [])

    def test_files_that_make_up_a_tier_are_merged(self) -> None:
        self.assertEqual(plan_compaction(run(16, 16, 16), TARGET), [])
        self.assertEqual(lows(plan_compaction(run(16, 16, 16, 16), TARGET)), [[1, 17, 33, 49]])
        # The file of 300 is in its tier already, so only those after it are merged.
        self.assertEqual(
            lows(plan_compaction(run(300, 16, 16, 16, 16), TARGET)), [[301, 317, 333, 349]]
        )

    def test_full_merges_all_small_files(self) -> None:
        self.assertEqual(
            lows(plan_compaction(run(300, 10, 10), TARGET, full=True)), [[1, 301, 311]]
        )

    def test_groups_do_not_span_large_files(self) -> None:
        files = run(100, 100, 100, 500, 100, 100, 100)
        groups = plan_compaction(files, TARGET, full=True)
        self.assertEqual(groups, [files[:3], files[4:]])

    def test_files_are_grouped_in_the_order_of_their_ids(self) -> None:
        files = run(100, 100, 100, 100)
        mixed = [files[2], files[0], files[3], files[1]]
        self.assertEqual(plan_compaction(mixed, TARGET, full=True), [files])

    def test_groups_have_about_the_target_size(self) -> None:
        files = run(*[100] * 33)
        groups = plan_compaction(files, TARGET)
        self.assertEqual([sum(each.size for each in group) for group in groups], [1000, 1000, 1300])
        self.assertEqual([each for group in groups for each in group], files)

    @given(
        st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 1500), st.integers(0, 60))),
        st.booleans(),
    )
    def test_any_files_are_grouped_within_the_rules(
        self, made: list[tuple[int, int, int]], full: bool
    ) -> None:
        files = [
            DataFile(f"{n}", size, rows, low, low + rows)
            for n, (low, rows, size) in enumerate(made)
        ]
        groups = plan_compaction(files, TARGET, full=full)
        names = [each.name for group in groups for each in group]
        self.assertEqual(len(names), len(set(names)))
        for group in groups:
            self.assertGreater(len(group), 1)
            self.assertLess(max(each.size for each in group), TARGET / 2)
            self.assertLess(sum(each.size for each in group), 2 * TARGET)

    def test_steady_landing_writes_each_row_a_few_times(self) -> None:
        """Compaction after each landing writes n log n rows, and keeps few files."""
        landings, rows = 3000, 7
        table: list[DataFile] = []
        written = 0
        most = 0
        at = 1
        for _ in range(landings):
            table.append(file(at, rows, rows))
            at += rows
            for group in plan_compaction(table, 10**9):
                new = joined(group)
                written += new.rows
                table = [each for each in table if each not in group] + [new]
            most = max(most, len(table))
        tiers = log(landings * rows, GROWTH) + 1
        self.assertLess(written, landings * rows * tiers)
        self.assertLess(most, GROWTH * tiers)
        self.assertEqual(sum(each.rows for each in table), landings * rows)
