from __future__ import annotations

from unittest import TestCase

from synrepl.federation.back_off import DestinationFailure, failed, is_failure


def none() -> float:
    return 0.0


class Failures(TestCase):
    def test_delay_the_next_attempt_by_twice_the_time_up_to_a_day(self) -> None:
        now, before, delays = 1_000_000, None, []
        for _ in range(16):
            before = failed(before, now, now, "away", none)
            delays.append((before.retry_at_ms - now) // 1000)
            now = before.retry_at_ms
        self.assertEqual(delays[:4], [10, 20, 40, 80])
        self.assertEqual(delays[-1], 86_400)

    def test_are_counted_from_the_first(self) -> None:
        first = failed(None, 900, 1_000, "away", none)
        self.assertEqual(first, DestinationFailure(1_000, 1, 1_000, 11_000, "away"))
        second = failed(first, 12_000, 13_000, "still", none)
        self.assertEqual(second, DestinationFailure(1_000, 2, 13_000, 33_000, "still"))

    def test_of_attempts_made_at_the_same_time_count_as_one(self) -> None:
        first = failed(None, 900, 1_000, "away", none)
        self.assertEqual(failed(first, 950, 2_000, "away", none), first)
        self.assertEqual(failed(first, 1_000, 2_000, "away", none).failures, 2)

    def test_have_jitter(self) -> None:
        self.assertEqual(failed(None, 0, 0, "away", lambda: 0.5).retry_at_ms, 7_500)

    def test_respect_what_the_server_wants_within_limits(self) -> None:
        self.assertEqual(failed(None, 0, 0, "", none, 60.0).retry_at_ms, 60_000)
        self.assertEqual(failed(None, 0, 0, "", none, 1.0).retry_at_ms, 10_000)
        self.assertEqual(failed(None, 0, 0, "", none, 1e300).retry_at_ms, 86_400_000)

    def test_are_answers_of_a_server_that_is_not_well(self) -> None:
        for status in (500, 502, 503, 504, 429, 401, 408):
            self.assertTrue(is_failure(status), status)
        for status in (200, 302, 400, 403, 404, 405, 413):
            self.assertFalse(is_failure(status), status)
