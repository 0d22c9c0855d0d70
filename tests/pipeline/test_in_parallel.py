"""Work on many tables in a few threads."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Event
from unittest import TestCase

from synrepl.pipeline.lake.in_parallel import DISK_THREADS, STORE_THREADS, in_parallel
from synrepl.pipeline.lake.storage import LakePath, ObjectPath

_PATIENCE_S = 60

DISK, STORE = Path("/lake"), ObjectPath("s3://bucket/lake")


class InParallel(TestCase):
    """Results in order, and nothing runs on after an error."""

    def test_results_are_in_the_order_of_the_items(self) -> None:
        turns = [Event() for _ in range(5)]
        turns[-1].set()

        def work(item: int) -> int:
            turns[item].wait(_PATIENCE_S)
            turns[item - 1].set()  # the last item is done first
            return item * 10

        self.assertEqual(in_parallel(work, range(5), STORE), [0, 10, 20, 30, 40])
        self.assertEqual(in_parallel(work, [], DISK), [])

    def test_items_run_at_the_same_time(self) -> None:
        self.run_together(DISK, DISK_THREADS)
        self.run_together(STORE, STORE_THREADS)

    def run_together(self, lake: LakePath, threads: int) -> None:
        together = Barrier(threads)
        in_parallel(lambda item: together.wait(_PATIENCE_S), range(threads), lake)

    def test_the_first_error_is_raised_when_nothing_runs_any_more(self) -> None:
        failed, done = Event(), []

        def work(item: int) -> None:
            if item == 1:
                failed.set()
                raise ValueError("of item 1")
            failed.wait(_PATIENCE_S)
            done.append(item)

        with self.assertRaisesRegex(ValueError, "of item 1"):
            in_parallel(work, range(2), DISK)
        self.assertEqual(done, [0])
