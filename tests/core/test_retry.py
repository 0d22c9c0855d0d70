"""Delays between attempts, at times and with random numbers that the tests choose."""

from __future__ import annotations

from functools import partial
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.core.retry import BackOff, Patience, Retry

limits = st.floats(0.001, 60.0)
fractions = st.floats(0.0, 1.0, exclude_max=True)


def no_jitter() -> float:
    return 0.0


class Delays(TestCase):
    """Back-off and jitter."""

    def test_doubles_up_to_the_longest_delay(self) -> None:
        retry = Retry(BackOff(0.5, 5.0), no_jitter)
        self.assertEqual([retry.failed() for _ in range(6)], [0.5, 1.0, 2.0, 4.0, 5.0, 5.0])

    def test_stays_at_the_longest_delay_for_ever(self) -> None:
        self.assertEqual(BackOff(0.1, 30.0).delay_s(10**9, no_jitter), 30.0)

    def test_never_exceeds_a_limit_below_the_first_delay(self) -> None:
        self.assertEqual(BackOff(2.0, 1.0).delay_s(1, no_jitter), 1.0)

    @given(limits, limits, st.integers(0, 10_000), fractions)
    def test_jitter_takes_away_at_most_half(
        self, first_s: float, longest_s: float, failures: int, fraction: float
    ) -> None:
        back_off = BackOff(first_s, longest_s)
        whole = back_off.delay_s(failures, no_jitter)
        delay = back_off.delay_s(failures, lambda: fraction)
        self.assertTrue(whole / 2 <= delay <= whole <= longest_s, (delay, whole))

    def test_parties_that_fail_together_come_back_at_different_times(self) -> None:
        one, other = (Retry(BackOff(1.0, 5.0), partial(float, part)) for part in (0.2, 0.8))
        self.assertEqual((one.failed(), other.failed()), (0.9, 0.6))


class Counting(TestCase):
    """Failures in a row."""

    def test_begins_without_a_failure_and_without_a_delay(self) -> None:
        retry = Retry(BackOff(0.5, 5.0), no_jitter)
        self.assertEqual((retry.failures, retry.delay_s), (0, 0.0))

    def test_keeps_the_delay_that_it_gave(self) -> None:
        drawn = iter([0.5, 0.25])
        retry = Retry(BackOff(1.0, 8.0), lambda: next(drawn))
        self.assertEqual((retry.failed(), retry.delay_s, retry.failures), (0.75, 0.75, 1))
        self.assertEqual((retry.failed(), retry.delay_s, retry.failures), (1.75, 1.75, 2))

    def test_begins_again_after_a_success(self) -> None:
        retry = Retry(BackOff(0.5, 5.0), no_jitter)
        for _ in range(4):
            retry.failed()
        retry.succeeded()
        self.assertEqual((retry.failures, retry.delay_s), (0, 0.0))
        self.assertEqual(retry.failed(), 0.5)


class TimeLimits(TestCase):
    """Giving up."""

    def setUp(self) -> None:
        self.now = 1_000.0

    def patience(self, limit_s: float) -> Patience:
        return Patience(lambda: self.now, limit_s)

    def test_counts_from_the_first_failure(self) -> None:
        patience = self.patience(10.0)
        self.now += 500.0
        self.assertTrue(patience.allows(1.0))
        self.now += 9.0
        self.assertTrue(patience.allows(1.0))

    def test_refuses_an_attempt_that_would_come_too_late(self) -> None:
        patience = self.patience(10.0)
        self.assertTrue(patience.allows(2.0))
        self.now += 9.0
        self.assertFalse(patience.allows(2.0))
        self.assertTrue(patience.allows(0.5))

    def test_without_any_time_there_is_no_second_attempt(self) -> None:
        self.assertFalse(self.patience(0.0).allows(0.1))
