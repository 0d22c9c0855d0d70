"""Receives a server's commands, rows undecoded, for ``synrepl tail`` and ``synrepl watch``.

:class:`synrepl.services.following.follower.Follower` does not fit, because it needs the streams'
declarations and decodes their rows. ``ReconnectingClientFactory`` does not fit either. Commands are
pulled, so that a slow reader slows the server down. The next connection may need another dialect,
at once. The first failure may be final. A host name may have only IPv6 addresses, which endpoints
try.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Generic, Protocol, TypeVar

from synrepl.cli.raw_peer import NoMaster, RawUpstream
from synrepl.core.clock import Scheduler
from synrepl.core.retry import BackOff, Retry
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import Dialect

U = TypeVar("U", bound=RawUpstream)
U_contra = TypeVar("U_contra", bound=RawUpstream, contravariant=True)


class RawListener(Protocol[U_contra]):
    """Receives commands and connection events; an exception from any method ends :meth:`RawFollower.run`."""

    def unreachable(self, error: NoMaster) -> None:
        """A connection attempt failed; another one follows."""

    def connected(self, upstream: U_contra) -> None:
        """A connection was made: subscribe."""

    async def received(self, upstream: U_contra, commands: Sequence[Command]) -> bool:
        """Process commands, while reading pauses; return False to stop following."""

    def disconnected(self) -> None:
        """The connection was closed, for any reason."""

    def dialect_understood(self, upstream: U_contra) -> bool:
        """Whether the server understood the dialect of the connection that was lost.

        If not, the next connection uses the next dialect.
        """


class RawFollower(Generic[U]):
    """Follows a server, and reconnects when the connection is lost.

    :param connect: connects in a dialect; raises :class:`NoMaster`
    :param dialects: tried in turn until the server understands one; back-off starts after the last
    """

    def __init__(
        self,
        scheduler: Scheduler,
        connect: Callable[[Dialect], Awaitable[U]],
        dialects: Sequence[Dialect],
        back_off: BackOff,
        listener: RawListener[U],
    ) -> None:
        self._scheduler = scheduler
        self._connect = connect
        self._dialects = tuple(dialects)
        self._back_off = back_off
        self._listener = listener

    async def run(self) -> None:
        """Follow until the listener returns False."""
        retry = Retry(self._back_off, self._scheduler.random)
        dialects = cycle(self._dialects)
        dialect = next(dialects)
        while True:
            try:
                upstream = await self._connect(dialect)
            except NoMaster as error:  # says nothing about the dialect
                self._listener.unreachable(error)
            else:
                if not await self._follow(upstream):
                    return
                if self._listener.dialect_understood(upstream):
                    retry.succeeded()
                else:
                    refused, dialect = dialect, next(dialects)
                    if refused is not self._dialects[-1]:
                        continue
            await self._scheduler.sleep(retry.failed())

    async def _follow(self, upstream: U) -> bool:
        """Follow over one connection; False when the listener has stopped following."""
        try:
            self._listener.connected(upstream)
            while commands := await upstream.commands():
                if not await self._listener.received(upstream, commands):
                    return False
            return True
        finally:
            upstream.close(CloseReason.LOCAL)
            self._listener.disconnected()
