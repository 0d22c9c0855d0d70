"""A scheduler for those who would only wait."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.scheduler import TwistedScheduler


class HastyScheduler(TwistedScheduler):
    """A scheduler whose sleeps are over at once, although its time has passed."""

    def __init__(self) -> None:
        self.time = Clock()
        super().__init__(cast(Any, self.time))

    def sleep(self, seconds: float) -> Deferred[None]:
        slept = super().sleep(seconds)
        self.time.advance(seconds)
        return slept
