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
from synrepl.pipeline.database.safe_bound import SafeBound
from synrepl.positions.vector import PositionVector

#: For how long a run that ends looks, unless told otherwise, in seconds.
SETTLE_TIMEOUT_S = 60.0

#: Between two looks, in seconds.
PAUSE_S = 0.25


class BlockingClock(NamedTuple):
    """Time for callers that wait in their own thread.

    :ivar now: in seconds, of a clock that does not go back
    :ivar pause: waits that many seconds
    """

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep


REAL_TIME = BlockingClock()


class Unsettled(NamedTuple):
    """What is not settled of what a stream had given out.

    :ivar settled: up to where everything is
    :ivar last: the last token that had been given out at the first look
    :ivar waits_for: what holds the rest back, for a person
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


class SettlementPoller:
    """Repeated looks at streams, of which the first one sets the goal.

    :param look: looks once, see :meth:`.SourceDatabase.observe`; may find streams that are new
    :ivar standings: what the last look found
    """

    def __init__(
        self, look: Callable[[], Mapping[str, SafeBound]], clock: BlockingClock = REAL_TIME
    ) -> None:
        self._look = look
        self._clock = clock
        self._goal: dict[str, Token] = {}
        self.standings: Mapping[str, SafeBound] = {}
        self.look()

    def look(self) -> None:
        """Look once."""
        self.standings = self._look()
        for stream, at in self.standings.items():
            self._goal.setdefault(stream, at.last)

    def unsettled(self, known: Known) -> dict[str, Unsettled]:
        """The streams that had given out more at the first look than is settled by now."""
        found = {}
        for stream, at in self.standings.items():
            settled = known.get(stream, PositionVector()).merge(at.bound)
            # Where rows are deleted, a stream may end earlier by now.
            if settled.linear < min(self._goal[stream], at.last):
                found[stream] = Unsettled(stream, settled, self._goal[stream], at.waits_for)
        return found

    def poll(self, known: Known, give_up: float) -> dict[str, SafeBound]:
        """Look, at least once, until more is settled of some stream that is not settled yet.

        :param give_up: the time until which that is worth it
        :returns: those streams; none when the time is up, or all is settled as it is
        """
        wanted = self.unsettled(known)
        while True:
            self.look()
            moved = {
                stream: at
                for stream, at in self.standings.items()
                if stream in wanted and not known.get(stream, PositionVector()).covers(at.bound)
            }
            if moved or not self.unsettled(known) or self._clock.now() + PAUSE_S > give_up:
                return moved
            self._clock.pause(PAUSE_S)
