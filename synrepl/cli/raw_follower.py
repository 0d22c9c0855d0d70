"""Following a server for its commands as they came, under ``synrepl tail`` and ``synrepl watch``.

Not :class:`synrepl.services.following.follower.Follower`, which has to know the streams and types
their rows. Not a ``ReconnectingClientFactory`` either: commands are pulled, so that a slow reader
makes the server wait; the next connection may have to be in another dialect, at once; the first
failure may be the last; and a server's name may have IPv6 addresses only, which endpoints try.
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
    """Takes the commands. What any of its methods raises ends the following."""

    def unreachable(self, error: NoMaster) -> None:
        """A connection could not be made; another attempt follows."""

    def connected(self, upstream: U_contra) -> None:
        """A connection was made: ask for data."""

    async def received(self, upstream: U_contra, commands: Sequence[Command]) -> bool:
        """Take commands; nothing more is read meanwhile. False after enough of them."""

    def disconnected(self) -> None:
        """The connection is over, for whatever reason."""

    def understood(self, upstream: U_contra) -> bool:
        """Whether a connection that was lost was of use, so that another one is likely to be."""


class RawFollower(Generic[U]):
    """Follows over one connection after the other.

    :param connect: makes a connection in a dialect; raises :class:`NoMaster`
    :param dialects: tried in turn, at once, until one of them is understood; back-off comes
        after the last one
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
        """Follow until the listener has had enough."""
        retry = Retry(self._back_off, self._scheduler.random)
        dialects = cycle(self._dialects)
        dialect = next(dialects)
        while True:
            try:
                upstream = await self._connect(dialect)
            except NoMaster as error:  # which says nothing of the dialect
                self._listener.unreachable(error)
            else:
                if not await self._follow(upstream):
                    return
                if self._listener.understood(upstream):
                    retry.succeeded()
                else:
                    refused, dialect = dialect, next(dialects)
                    if refused is not self._dialects[-1]:
                        continue
            await self._scheduler.sleep(retry.failed())

    async def _follow(self, upstream: U) -> bool:
        """Deal with one connection; False when the listener has had enough."""
        try:
            self._listener.connected(upstream)
            while commands := await upstream.commands():
                if not await self._listener.received(upstream, commands):
                    return False
            return True
        finally:
            upstream.close(CloseReason.LOCAL)
            self._listener.disconnected()
