"""Ranges of tokens with about the same number of rows."""

from __future__ import annotations

from itertools import pairwise
from unittest import TestCase

import numpy as np

from synrepl.core.tokens import Range
from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.token_ranges import TokenRanges, merge_adjacent


def file(low: int, high: int, rows: int) -> DataFile:
    return DataFile("", 0, rows, low, high)


class TokenRangesOfFiles(TestCase):
    """Where tokens are divided into ranges."""

    def test_rows_of_one_file_are_cut_evenly(self) -> None:
        ranges = TokenRanges.of_files([file(1, 100, 200)], False, Range(0, 100), 50)
        self.assertEqual(ranges, TokenRanges(0, (25, 50, 75, 100)))
        self.assertEqual((len(ranges), ranges[0], ranges[3]), (4, Range(0, 25), Range(75, 100)))

    def test_dense_tokens_get_more_ranges(self) -> None:
        files = [file(1, 10, 1_000), file(11, 10_010, 1_000)]
        ranges = TokenRanges.of_files(files, False, Range(0, 10_010), 500)
        self.assertEqual(ranges.ends, (5, 10, 5_010, 10_010))

    def test_overlapping_files_add_up(self) -> None:
        files = [file(1, 100, 100), file(51, 150, 100)]
        ranges = TokenRanges.of_files(files, False, Range(0, 150), 50)
        self.assertEqual(ranges.ends, (50, 75, 100, 150))

    def test_only_the_requested_tokens_are_cut(self) -> None:
        ranges = TokenRanges.of_files([file(1, 100, 100)], False, Range(40, 60), 10)
        self.assertEqual(ranges, TokenRanges(40, (50, 60)))

    def test_descending_ids_are_cut_by_token(self) -> None:
        files = [file(-10, -1, 1_000), file(-110, -11, 100)]
        ranges = TokenRanges.of_files(files, True, Range(0, 110), 500)
        self.assertEqual(ranges.ends, (5, 10, 110))

    def test_without_files_and_with_large_tokens(self) -> None:
        self.assertEqual(TokenRanges.of_files([], False, Range(3, 9), 5), TokenRanges(3, (9,)))
        base = 2**62
        ranges = TokenRanges.of_files(
            [file(base + 1, base + 4, 4)], False, Range(base, base + 4), 2
        )
        self.assertEqual(ranges, TokenRanges(base, (base + 2, base + 4)))

    def test_every_token_is_in_its_range(self) -> None:
        ranges = TokenRanges(10, (20, 21, 30))
        tokens = np.array([11, 20, 21, 22, 30, 99])
        self.assertEqual(ranges.numbers(tokens).tolist(), [0, 0, 1, 2, 2, 2])

    def test_ranges_are_adjacent_and_ascending(self) -> None:
        files = [file(7 * n + 1, 7 * n + 11, 13 * n % 29) for n in range(40)]
        ranges = TokenRanges.of_files(files, False, Range(0, 300), 17)
        edges = [ranges.after, *ranges.ends]
        self.assertTrue(all(before < after for before, after in pairwise(edges)), edges)
        self.assertEqual(edges[-1], 300)


class MergeAdjacent(TestCase):
    """Merging adjacent ranges."""

    def test_adjacent_ranges_are_merged(self) -> None:
        self.assertEqual(
            merge_adjacent([Range(0, 3), Range(3, 5), Range(7, 8)]), [Range(0, 5), Range(7, 8)]
        )
