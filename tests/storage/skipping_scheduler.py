"""A scheduler that skips waiting times."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.scheduler import TwistedScheduler


class SkippingScheduler(TwistedScheduler):
    """A scheduler whose sleeps end at once and advance its clock."""

    def __init__(self) -> None:
        self.time = Clock()
        super().__init__(cast(Any, self.time))

    def sleep(self, seconds: float) -> Deferred[None]:
        slept = super().sleep(seconds)
        self.time.advance(seconds)
        return slept
