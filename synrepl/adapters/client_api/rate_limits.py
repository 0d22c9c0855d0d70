"""Rate limits with bounded memory, as token buckets.

A bucket is kept as one number: the time at which it will be full again (the generic cell rate algorithm), so a
full bucket needs no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil

from synrepl.adapters.client_api.errors import RateLimited
from synrepl.core.clock import Clock

#: Maximum number of buckets of a limit. Beyond it, those not used for longest are full again.
MAX_BUCKETS = 100_000


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How many requests are allowed.

    :ivar per_second: in the long run
    :ivar burst: at once, after a pause
    """

    per_second: float
    burst: int


class RateLimiter:
    """Limits the requests of each user or address.

    :param max_buckets: see :data:`MAX_BUCKETS`
    :ivar refused: number of requests refused so far
    """

    def __init__(self, clock: Clock, limit: RateLimit, max_buckets: int = MAX_BUCKETS) -> None:
        self._clock = clock
        self._interval = 1 / limit.per_second
        self._slack = (limit.burst - 1) * self._interval
        self._max_buckets = max_buckets
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self.refused = 0

    def __len__(self) -> int:
        """Number of buckets that are kept."""
        return len(self._full_at)

    def check(self, key: str) -> None:
        """Refuse what :meth:`take` would refuse, without counting a request.

        :raises RateLimited:
        """
        self._check(key, self._clock.seconds())

    def take(self, key: str) -> None:
        """Count a request.

        :param key: the user or the address
        :raises RateLimited: it is one too many; it does not count
        """
        now = self._clock.seconds()
        self._full_at[key] = self._check(key, now) + self._interval
        self._full_at.move_to_end(key)
        self._drop(now)

    def _check(self, key: str, now: float) -> float:
        """When the bucket is full, if it lets another request pass now."""
        full_at = self._full_at.get(key, now)
        if full_at < now:
            full_at = now
        if full_at - now > self._slack + 1e-9:
            self.refused += 1
            raise RateLimited(retry_after_ms=ceil((full_at - now - self._slack) * 1000))
        return full_at

    def _drop(self, now: float) -> None:
        """Drop buckets that are full, as far as they come first, and those beyond the maximum."""
        while self._full_at:
            key = next(iter(self._full_at))
            if self._full_at[key] > now and len(self._full_at) <= self._max_buckets:
                return
            del self._full_at[key]
