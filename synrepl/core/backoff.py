"""How long to wait before the next try."""

from __future__ import annotations

import random


def pause(tries: int, *, base: float, longest: float) -> float:
    """Seconds to wait after ``tries`` failures in a row.

    Doubling from ``base`` up to ``longest``, less a random part of up to a half,
    so that parties which failed together do not come back together.
    """
    doubled = base * 2.0 ** min(max(tries, 1) - 1, 30)
    return random.uniform(0.5, 1.0) * min(doubled, longest)  # noqa: S311
