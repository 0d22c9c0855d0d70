"""Looking at streams until what they had given out is settled.

Some bounds are found by repeated looks alone (:mod:`.bounds`): who looks once, and goes, never learns
that anything is settled. So whoever reads up to an end looks until that is proven, and says so where
it cannot be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.pipeline.origin.standing import Standing
from synrepl.positions.vector import PositionVector

#: For how long a run that ends looks, unless told otherwise, in seconds.
SETTLE_TIMEOUT_S = 60.0

#: Between two looks, in seconds.
PAUSE_S = 0.25


class Timer(NamedTuple):
    """Time for callers that wait in their own thread.

    :ivar now: in seconds, of a clock that does not go back
    :ivar pause: waits that many seconds
    """

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep


REAL_TIME = Timer()


class Unsettled(NamedTuple):
    """What is not settled of what a stream had given out.

    :ivar settled: up to where everything is
    :ivar last: the last token that had been given out at the first look
    :ivar waits_for: what keeps the rest, for a person
    """

    stream: str
    settled: PositionVector
    last: Token
    waits_for: tuple[str, ...]

    def __str__(self) -> str:
        whom = f" (waits for {', '.join(self.waits_for[:3])})" if self.waits_for else ""
        return f"stream {self.stream!r} above {self.settled} up to {self.last}{whom}"


#: By stream, what is known to be settled, also from elsewhere.
Known = Mapping[str, PositionVector]


class Looks:
    """Repeated looks at streams, of which the first one sets the goal.

    :param look: looks once, see :meth:`.Origin.look`; may find streams that are new
    :ivar standings: what the last look found
    """

    def __init__(
        self, look: Callable[[], Mapping[str, Standing]], timer: Timer = REAL_TIME
    ) -> None:
        self._look = look
        self._timer = timer
        self._goal: dict[str, Token] = {}
        self.standings = self._looked()

    def unsettled(self, known: Known) -> dict[str, Unsettled]:
        """The streams that had given out more at the first look than is settled by now."""
        found = {}
        for stream, at in self.standings.items():
            settled = known.get(stream, PositionVector()).merge(at.bound)
            # Where rows are deleted, a stream may end earlier by now.
            if settled.linear < min(self._goal[stream], at.last):
                found[stream] = Unsettled(stream, settled, self._goal[stream], at.waits_for)
        return found

    def moved(self, known: Known) -> dict[str, Standing]:
        """The streams of which more is settled than what is known."""
        return {
            stream: at
            for stream, at in self.standings.items()
            if not known.get(stream, PositionVector()).covers(at.bound)
        }

    def again(self, known: Known, give_up: float) -> bool:
        """Look until more is settled than what is known, or everything that is wanted.

        :param give_up: the time until which that is worth it
        :returns: False when the time is up
        """
        while self._timer.now() + PAUSE_S <= give_up:
            self._timer.pause(PAUSE_S)
            self.standings = self._looked()
            if self.moved(known) or not self.unsettled(known):
                return True
        return False

    def _looked(self) -> Mapping[str, Standing]:
        found = self._look()
        for stream, at in found.items():
            self._goal.setdefault(stream, at.last)
        return found
