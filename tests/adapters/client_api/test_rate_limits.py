"""Rate limits of users and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from synrepl.adapters.client_api.errors import RateLimited
from synrepl.adapters.client_api.rate_limits import RateLimit, RateLimiter


def limiter(limit: RateLimit, **more: Any) -> tuple[RateLimiter, Clock]:
    clock = Clock()
    return RateLimiter(cast(Any, clock), limit, **more), clock


def allowed(limits: RateLimiter, key: str = "@u:x") -> bool:
    try:
        limits.take(key)
    except RateLimited:
        return False
    return True


class LimitsOfRequests(TestCase):
    """A token bucket for each key."""

    def test_allows_a_burst_and_then_the_rate(self) -> None:
        limits, clock = limiter(RateLimit(2.0, 3))
        self.assertEqual([allowed(limits) for _ in range(5)], [True] * 3 + [False] * 2)
        clock.advance(0.5)
        self.assertEqual([allowed(limits) for _ in range(2)], [True, False])
        self.assertEqual(limits.refused, 3)

    def test_a_refused_request_may_be_sent_again_after_the_time_that_it_says(self) -> None:
        limits, clock = limiter(RateLimit(2.0, 1))
        limits.take("a")
        with self.assertRaises(RateLimited) as raised:
            limits.take("a")
        wait_ms = raised.exception.facts["retry_after_ms"]
        self.assertEqual(wait_ms, 500)
        clock.advance(0.4)
        self.assertFalse(allowed(limits, "a"))
        clock.advance(0.1)
        self.assertTrue(allowed(limits, "a"))

    def test_keys_are_independent(self) -> None:
        limits, _ = limiter(RateLimit(1.0, 1))
        self.assertTrue(allowed(limits, "a"))
        self.assertTrue(allowed(limits, "b"))

    def test_full_buckets_need_no_memory(self) -> None:
        limits, clock = limiter(RateLimit(1.0, 1))
        for number in range(50):
            limits.take(str(number))
        clock.advance(10)
        limits.take("another")
        self.assertEqual(len(limits), 1)

    def test_keeps_a_bounded_number_of_buckets(self) -> None:
        limits, _ = limiter(RateLimit(0.001, 1), max_buckets=10)
        for number in range(100):
            limits.take(str(number))
        self.assertEqual(len(limits), 10)
        self.assertFalse(allowed(limits, "99"))

    @given(st.lists(st.floats(0, 3), max_size=60))
    def test_never_allows_more_than_the_burst_and_the_rate(self, pauses: Sequence[float]) -> None:
        limits, clock = limiter(RateLimit(2.0, 4))
        taken = []
        for pause in pauses:
            clock.advance(pause)
            if allowed(limits):
                taken.append(clock.seconds())
        for first, start in enumerate(taken):
            for last in range(first, len(taken)):
                self.assertLessEqual(last - first + 1, 4 + 2.0 * (taken[last] - start) + 1e-6)
