"""How many rows had been appended when, to tell how old what is missing somewhere is."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

#: The rate is that of the last so many seconds.
_RATE_S = 2.0


class History:
    """Moments and totals. Looks come a few times a second, for as long as the appending takes."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, int]] = []

    def note(self, now: float, total: int) -> None:
        """So many rows have been appended by now."""
        if not self._moments or total > self._moments[-1][1]:
            self._moments.append((now, total))

    def when(self, rows: int, now: float) -> float:
        """The moment at which there were more than ``rows``; now, when there are not."""
        at = bisect_right(self._moments, rows, key=itemgetter(1))
        return self._moments[at][0] if at < len(self._moments) else now

    def rate(self, now: float) -> float:
        """Rows per second, lately."""
        if not self._moments:
            return 0.0
        at = bisect_right(self._moments, now - _RATE_S, key=itemgetter(0))
        then, before = self._moments[max(0, at - 1)]
        rows = self._moments[-1][1] - before
        return rows / max(now - then, 1e-3) if now > then else 0.0
