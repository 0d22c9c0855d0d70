"""Writes as fast as a client reads: a push producer that coroutines wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from synrepl.core.clock import Clock


@implementer(IPushProducer)
class PacedWriting:
    """Lets a coroutine write when the transport wants more.

    :param stall_s: seconds without any progress of the client after which it counts as lost
    :ivar is_lost: whether nobody will read any more
    """

    def __init__(self, clock: Clock, stall_s: float) -> None:
        self._clock = clock
        self._stall_s = stall_s
        self._waiting: Deferred[None] | None = None
        self._is_paused = False
        self.is_lost = False

    async def wait(self) -> bool:
        """Wait until the transport wants more; returns whether the client is lost."""
        if self._is_paused and not self.is_lost:
            self._waiting = Deferred()
            timer = self._clock.callLater(self._stall_s, self.lost)
            await self._waiting
            if timer.active():
                timer.cancel()
        return self.is_lost

    def lost(self) -> None:
        """The client is gone, or does not read."""
        self.is_lost = True
        self._wake()

    def pauseProducing(self) -> None:
        """The transport has enough for now."""
        self._is_paused = True

    def resumeProducing(self) -> None:
        """The transport wants more."""
        self._is_paused = False
        self._wake()

    def stopProducing(self) -> None:
        """The connection is being lost; its request hears of it next."""
        self.is_lost = True

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)


async def aclose(chunks: AsyncIterator[bytes]) -> None:
    """Close an asynchronous generator that may not have come to its end."""
    close = getattr(chunks, "aclose", None)
    if close is not None:
        await close()
