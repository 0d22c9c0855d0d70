"""Retries: exponential back-off with jitter.

Nothing here waits or has a time of its own. An operation that may fail keeps a :class:`Retry`,
which says how long to sleep after each failure; the time and the random numbers come from outside,
so that tests and simulations decide both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Gives numbers from 0 up to, but not including, 1; as ``random.random`` does.
RandomSource = Callable[[], float]

#: Beyond so many doublings every delay is the longest one.
_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class BackOff:
    """Limits of the delay between two attempts, in seconds.

    :ivar first_s: after the first failure; each further one doubles it
    :ivar longest_s: the largest delay
    """

    first_s: float
    longest_s: float

    def delay_s(self, failures: int, random: RandomSource) -> float:
        """Seconds to wait after ``failures`` failures in a row.

        Jitter takes away up to half of it, so that parties that failed together do not come
        back together.
        """
        doubled = self.first_s * 2.0 ** min(max(failures, 1) - 1, _MOST_DOUBLINGS)
        return (1.0 - 0.5 * random()) * min(doubled, self.longest_s)


class Retry:
    """The attempts of one operation.

    :param random: source of the jitter
    :ivar failures: failed attempts in a row
    :ivar delay_s: seconds between the last failure and the next attempt; 0 without a failure
    """

    __slots__ = ("_back_off", "_random", "delay_s", "failures")

    def __init__(self, back_off: BackOff, random: RandomSource) -> None:
        self._back_off = back_off
        self._random = random
        self.failures = 0
        self.delay_s = 0.0

    def failed(self) -> float:
        """Count a failure.

        :returns: seconds to wait before the next attempt
        """
        self.failures += 1
        self.delay_s = self._back_off.delay_s(self.failures, self._random)
        return self.delay_s

    def succeeded(self) -> None:
        """Start over: the next failure counts as the first."""
        self.failures = 0
        self.delay_s = 0.0


class Patience:
    """Time limit of a retry. It starts at the first failure, so that long work is not charged.

    :param seconds: the time, in seconds
    :param limit_s: seconds from the first failure to the last attempt
    """

    __slots__ = ("_give_up_at", "_limit_s", "_seconds")

    def __init__(self, seconds: Callable[[], float], limit_s: float) -> None:
        self._seconds = seconds
        self._limit_s = limit_s
        self._give_up_at: float | None = None

    def allows(self, delay_s: float) -> bool:
        """Whether there is time for another attempt after ``delay_s`` seconds."""
        now = self._seconds()
        if self._give_up_at is None:
            self._give_up_at = now + self._limit_s
        return now + delay_s <= self._give_up_at
