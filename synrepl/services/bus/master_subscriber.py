"""The ear of a master: it hears commands that are not about streams, and what others keep in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synrepl.services.bus.mirror import Mirror
from synrepl.services.following.follower import Upstream
from synrepl.wire.batching import BatchTooLarge
from synrepl.wire.closing import reason_and_text
from synrepl.wire.commands import Command, Position, Rdata, Replicate


class MasterBusSubscriber:
    """Hands commands on; rows and positions of streams with a table are somebody else's.

    It asks for positions like everybody else, for its peers may count on hearing
    REPLICATE from whoever has come new; the answers cost it nothing.

    :param handle: gets each command
    :param mirror: gets the rows and positions of streams in memory
    :param joined: called when the bus can be heard and spoken to
    :param left: called when it cannot be heard any more
    """

    def __init__(
        self,
        handle: Callable[[Command], object],
        mirror: Mirror | None = None,
        joined: Callable[[], object] = lambda: None,
        left: Callable[[], object] = lambda: None,
    ) -> None:
        self._handle = handle
        self._mirror = mirror
        self._joined = joined
        self._left = left
        self._upstream: Upstream | None = None

    def connected(self, upstream: Upstream) -> None:
        """Ask, as a newcomer does."""
        self._upstream = upstream
        upstream.send(Replicate())
        self._joined()

    def received(self, commands: Sequence[Command]) -> None:
        """Hand on what is for somebody."""
        if self._mirror is not None:
            try:
                self._mirror.received(commands)
            except BatchTooLarge as error:
                if self._upstream is not None:
                    self._upstream.close(*reason_and_text(error))
        for command in commands:
            if not isinstance(command, Rdata | Position):
                self._handle(command)

    def disconnected(self) -> None:
        """What is missed from now on is missed."""
        self._upstream = None
        if self._mirror is not None:
            self._mirror.disconnected()
        self._left()
