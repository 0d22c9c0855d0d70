"""Polls streams until the tokens allocated so far are settled.

Some bounds need repeated observations (:mod:`.bounds`): a single observation never proves that
anything is settled. So a read with an end polls until that is proven, and reports what is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SafeBound

#: Default time limit of polling, in seconds.
SETTLE_TIMEOUT_S = 60.0

#: Time between two observations, in seconds.
PAUSE_S = 0.25


class BlockingClock(NamedTuple):
    """Time for callers that wait in their own thread.

    :ivar now: the time of a monotonic clock, in seconds
    :ivar pause: waits that many seconds
    """

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep


REAL_TIME = BlockingClock()


class Unsettled(NamedTuple):
    """Tokens of a stream that are allocated and not settled.

    :ivar settled: every token up to it is settled
    :ivar last: the last token that was allocated at the first observation
    :ivar waits_for: descriptions of what holds the rest back
    """

    stream: str
    settled: PositionVector
    last: Token
    waits_for: tuple[str, ...]

    def __str__(self) -> str:
        whom = f" (waits for {', '.join(self.waits_for[:3])})" if self.waits_for else ""
        return f"stream {self.stream!r} above {self.settled} up to {self.last}{whom}"


#: By stream, the position known to be settled, also from elsewhere.
Known = Mapping[str, PositionVector]


class SettlementPoller:
    """Observes streams repeatedly; the first observation sets the goal.

    :param look: observes once, see :meth:`.SourceDatabase.observe`; may find new streams
    :ivar bounds: by stream, the last observation
    """

    def __init__(
        self, look: Callable[[], Mapping[str, SafeBound]], clock: BlockingClock = REAL_TIME
    ) -> None:
        self._observe = look
        self._clock = clock
        self._goal: dict[str, Token] = {}
        self.bounds: Mapping[str, SafeBound] = {}
        self.observe()

    def observe(self) -> None:
        """Observe once."""
        self.bounds = self._observe()
        for stream, at in self.bounds.items():
            self._goal.setdefault(stream, at.last)

    def unsettled(self, known: Known) -> dict[str, Unsettled]:
        """The streams in which tokens allocated at the first observation are not settled yet."""
        found = {}
        for stream, at in self.bounds.items():
            settled = known.get(stream, PositionVector()).merge(at.bound)
            # If rows were deleted, the stream may end earlier now.
            if settled.linear < min(self._goal[stream], at.last):
                found[stream] = Unsettled(stream, settled, self._goal[stream], at.waits_for)
        return found

    def poll(self, known: Known, deadline: float) -> dict[str, SafeBound]:
        """Observe, at least once, until the bound of an unsettled stream advances.

        :param deadline: the deadline on the clock of this poller
        :returns: the streams that advanced; empty at the deadline, or if everything is settled
        """
        wanted = self.unsettled(known)
        while True:
            self.observe()
            moved = {
                stream: at
                for stream, at in self.bounds.items()
                if stream in wanted and not known.get(stream, PositionVector()).covers(at.bound)
            }
            if moved or not self.unsettled(known) or self._clock.now() + PAUSE_S > deadline:
                return moved
            self._clock.pause(PAUSE_S)
