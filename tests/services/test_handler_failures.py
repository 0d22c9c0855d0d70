"""Failing handlers are described in sentences of bounded length."""

from __future__ import annotations

from unittest import TestCase

from synrepl.services.following.failures import (
    MAX_LISTED,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    HandlerFailures,
    reason_of,
)
from synrepl.services.handlers import Batch
from tests.services.world import RecordingLog, manual_clock


def raised(error: Exception) -> Exception:
    """Raise and catch an exception, so that it has a traceback."""
    try:
        raise error
    except Exception as caught:
        return caught


def deep(depth: int) -> None:
    """Fail deep in the call stack."""
    if depth:
        deep(depth - 1)
    raise ValueError("x" * 10_000)


class DescribingFailures(TestCase):
    def setUp(self) -> None:
        self.clock, self.log = manual_clock(), RecordingLog()
        self.failures = HandlerFailures(self.clock, self.log)
        self.batch = Batch("notes", "one", 3, 7, ())

    def fail(self, handler: str = "mail", attempts: int = 1, stream: str = "notes") -> None:  # type: ignore[override]
        batch = Batch(stream, "one", 3, 7, ())
        self.failures.failed(handler, batch, raised(KeyError("why")), attempts, 5.0)

    def test_describes_a_failure_in_one_sentence(self) -> None:
        self.fail()
        self.clock.advance(2)
        self.fail(attempts=2)
        (failure,) = self.failures.failing.values()
        self.assertEqual(
            failure.sentence(self.clock.seconds()),
            "handler mail fails at notes (3, 7] of one: KeyError: 'why'"
            " (attempt 2, failing for 2 s, next attempt in 5 s)",
        )
        shown = failure.to_json(self.clock.seconds())
        self.assertEqual((shown["attempts"], shown["failing_s"], shown["after"]), (2, 2.0, 3))
        self.assertEqual(shown["sentence"], failure.sentence(self.clock.seconds()))

    def test_the_summary_omits_a_failure_that_a_retry_cures(self) -> None:
        self.fail()
        self.assertIsNone(self.failures.summary())
        self.assertIn("handler mail", self.failures.summary(("notes", "one")) or "")
        self.fail(attempts=2)
        self.assertIn("handler mail", self.failures.summary() or "")
        self.failures.succeeded("mail", "notes", "one")
        self.assertIsNone(self.failures.summary())
        self.assertIsNone(self.failures.summary(("notes", "one")))

    def test_selects_failures_that_hold_back_a_stream_and_writer(self) -> None:
        self.fail(stream="jobs")
        self.assertIsNone(self.failures.summary(("notes", "one")))
        self.assertIsNone(self.failures.summary(("jobs", "two")))
        self.assertIsNotNone(self.failures.summary(("jobs", "one")))
        self.assertIsNotNone(self.failures.summary(("jobs", "")))

    def test_lists_a_few_failures_and_counts_the_others(self) -> None:
        for number in range(MAX_LISTED + 2):
            self.fail(f"h{number}", attempts=2)
        shown = self.failures.summary() or ""
        self.assertEqual(shown.count("fails at"), MAX_LISTED)
        self.assertTrue(shown.endswith("; and 2 more"))

    def test_logs_a_traceback_once_per_place(self) -> None:
        for attempts in (1, 2, 3):
            self.fail(attempts=attempts)
        self.fail("other")
        tracebacks = [text for _, text in self.log.lines if "Traceback" in text]
        self.assertEqual(len(tracebacks), 2)
        self.assertIn("test_handler_failures.py", tracebacks[0])
        self.assertRegex(self.log.lines[1][1], r"; at .*test_handler_failures\.py:\d+, as before$")
        self.assertEqual(dict(self.failures.total), {"mail": 3, "other": 1})

    def test_bounds_reasons_and_makes_them_storable(self) -> None:
        try:
            deep(200)
        except ValueError as error:
            reason = reason_of(error)
        self.assertEqual(len(reason.message), MAX_MESSAGE)
        self.assertLessEqual(len(reason.traceback), MAX_TRACEBACK)
        self.assertTrue(reason.traceback.rstrip().endswith("xxx"))
        odd = reason_of(raised(ValueError("a\0b\ud800\nc")))
        self.assertEqual(odd.message, "a\\0b\\ud800 c")
        self.assertNotIn("\0", odd.traceback)
        odd.traceback.encode()
