"""Cooperative scheduling: long work is done in slices, so that no reactor turn takes long.

A peer can request some kinds of work in any amount. Such work is divided into
steps. All steps in one reactor turn share a budget; once it is spent, the
remaining steps wait in a queue for the next turn. A peer that requests much
work therefore delays itself, and the reactor serves all other peers in between.
"""

from __future__ import annotations

from collections import deque

from synrepl.core.clock import Promise, Scheduler

#: Budget of one turn. A unit is roughly the cost of handling one short line.
UNITS = 200

#: A turn ends after this many seconds, even if units are left.
SECONDS = 0.002


class Slices:
    """The budget of a turn, and the queue of steps that wait for the next one.

    :param units: budget of a turn; :data:`UNITS` by default
    :param seconds: maximum length of a turn, by the scheduler's clock
    """

    def __init__(
        self, scheduler: Scheduler, units: int | None = None, seconds: float = SECONDS
    ) -> None:
        self._scheduler = scheduler
        self._units = UNITS if units is None else units
        self._seconds = seconds
        self._left = 0
        self._until = 0.0
        self._begun = False
        self._serving = False
        self._waiting: deque[tuple[int, Promise[None]]] = deque()
        #: Number of turns in which work was done.
        self.turns = 0

    @property
    def waiting(self) -> int:
        """Number of steps that wait for a turn."""
        return len(self._waiting)

    def take(self, cost: int = 1) -> bool:
        """Take a step now if the budget allows it and no other step waits.

        A step that costs more than a whole turn runs at the start of a turn.
        """
        return not self._waiting and self._spend(cost)

    async def step(self, cost: int = 1) -> None:
        """Take a step, now or as soon as the budget allows it."""
        if not self.take(cost):
            promise: Promise[None] = self._scheduler.promise()
            self._waiting.append((cost, promise))
            if not self._serving:
                self._serving = True
                self._scheduler.spawn("work in slices", self._serve())
            await promise

    def _spend(self, cost: int) -> bool:
        now = self._scheduler.seconds()
        if not self._begun:
            self._begun = True
            self._left, self._until = self._units, now + self._seconds
            self.turns += 1
            self._scheduler.callLater(0, self._end)
        # Setting the clock back must not prolong a turn.
        elif self._left <= 0 or not self._until - self._seconds <= now < self._until:
            return False
        self._left -= cost
        return True

    def _end(self) -> None:
        self._begun = False

    async def _serve(self) -> None:
        waiting = self._waiting
        while waiting:
            # Stopping the scheduler cancels this; the steps in the queue are then never taken.
            await self._scheduler.sleep(0)
            while waiting and self._spend(waiting[0][0]):
                _, promise = waiting.popleft()
                promise.callback(None)  # runs until its next step joins the end of the queue
        self._serving = False
