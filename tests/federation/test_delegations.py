from __future__ import annotations

from unittest import TestCase

from synrepl.federation import delegations
from synrepl.federation.delegations import lifetime_s

HOUR, DAY = 3600.0, 86_400.0
NOW = 1_000_000_000.0


def no_jitter() -> float:
    return 0.0


class Lifetimes(TestCase):
    def test_of_an_answer(self) -> None:
        for cache_control, expires, wanted in (
            ([], None, DAY),
            (["public"], None, DAY),
            (["max-age=7200"], None, 2 * HOUR),
            (["public, Max-Age = 7200"], "Thu, 01 Jan 1970 00:00:00 GMT", 2 * HOUR),
            (["public", 'max-age="7200"'], None, 2 * HOUR),
            (["max-age=0"], None, 300),
            (["max-age=99999999999"], None, 2 * DAY),
            (["no-store"], None, 300),
            (["no-cache, max-age=7200"], None, 300),
            ([], "Sun, 09 Sep 2001 03:46:40 GMT", 2 * HOUR),
            ([], "Sun, 09 Sep 2001 00:46:40 GMT", 300),
            ([], "Sun, 09 Sep 2091 00:46:40 GMT", 2 * DAY),
            ([], "0", 300),
            ([], "\x00", 300),
        ):
            with self.subTest(f"{cache_control} {expires}"):
                self.assertEqual(lifetime_s(cache_control, expires, NOW), wanted)


class Remembered(TestCase):
    def test_a_document_for_its_lifetime_with_a_grace_period(self) -> None:
        known = delegations.found("b.example", DAY, NOW, no_jitter)
        self.assertEqual(known.expires_at, NOW + DAY)
        self.assertAlmostEqual(known.refresh_at, NOW + 0.8 * DAY)
        self.assertEqual(known.usable_until, NOW + 2 * DAY)

    def test_with_jitter_towards_earlier(self) -> None:
        known = delegations.found("b.example", DAY, NOW, lambda: 1.0)
        self.assertAlmostEqual(known.expires_at, NOW + 0.9 * DAY)

    def test_that_there_is_none_for_an_hour(self) -> None:
        known = delegations.absent(NOW, no_jitter)
        self.assertIsNone(known.delegated)
        self.assertEqual(known.expires_at, NOW + HOUR)

    def test_failures_for_longer_and_longer_up_to_an_hour(self) -> None:
        known, delays = None, []
        for _ in range(8):
            known = delegations.unavailable(known, NOW, no_jitter)
            self.assertIsNone(known.delegated)
            delays.append(known.expires_at - NOW)
        self.assertEqual(delays, [120, 240, 480, 960, 1920, HOUR, HOUR, HOUR])

    def test_a_document_outlives_failures_for_two_days(self) -> None:
        known = delegations.found("b.example", DAY, NOW, no_jitter)
        later = delegations.unavailable(known, NOW + DAY, no_jitter)
        self.assertEqual(later.delegated, "b.example")
        self.assertEqual(later.expires_at, NOW + DAY + 120)
        last = delegations.unavailable(later, NOW + 2 * DAY - 1, no_jitter)
        self.assertEqual((last.delegated, last.expires_at), ("b.example", NOW + 2 * DAY))
        over = delegations.unavailable(last, NOW + 2 * DAY, no_jitter)
        self.assertEqual((over.delegated, over.failures), (None, 3))

    def test_a_document_does_not_outlive_an_answer_without_one(self) -> None:
        self.assertIsNone(delegations.absent(NOW, no_jitter).delegated)
