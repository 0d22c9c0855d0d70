"""Work on many tables in a few threads."""

from __future__ import annotations

from threading import Barrier, Event
from unittest import TestCase

from synrepl.pipeline.lake.in_parallel import THREADS, in_parallel

_PATIENCE_S = 60


class InParallel(TestCase):
    """Results in order, and nothing runs on after an error."""

    def test_results_are_in_the_order_of_the_items(self) -> None:
        turns = [Event() for _ in range(5)]
        turns[-1].set()

        def work(item: int) -> int:
            turns[item].wait(_PATIENCE_S)
            turns[item - 1].set()  # the last item is done first
            return item * 10

        self.assertEqual(in_parallel(work, range(5)), [0, 10, 20, 30, 40])
        self.assertEqual(in_parallel(work, []), [])

    def test_items_run_at_the_same_time(self) -> None:
        together = Barrier(THREADS)
        in_parallel(lambda item: together.wait(_PATIENCE_S), range(THREADS))

    def test_the_first_error_is_raised_when_nothing_runs_any_more(self) -> None:
        failed, done = Event(), []

        def work(item: int) -> None:
            if item == 1:
                failed.set()
                raise ValueError("of item 1")
            failed.wait(_PATIENCE_S)
            done.append(item)

        with self.assertRaisesRegex(ValueError, "of item 1"):
            in_parallel(work, range(2))
        self.assertEqual(done, [0])
