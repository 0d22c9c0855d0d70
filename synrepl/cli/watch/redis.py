"""The Redis source of ``synrepl watch``: subscribes to a server's channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from synrepl.cli.terminal import printable
from synrepl.core.clock import Scheduler
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.tools.watch.announcements import Announcements
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Replicate
from synrepl.wire.dialects import CURRENT, Dialect

if TYPE_CHECKING:
    from synrepl.adapters.redis.pubsub import RedisBusConnections, RedisPubSub

#: How long to wait for answers, in seconds; recorded processes take a few hundredths.
ANSWER_TIMEOUT_S = 3.0

#: REPLICATE is repeated when a process has been silent for this long, in seconds.
ASK_INTERVAL_S = 30.0
_POLL_INTERVAL_S = 1.0


class RedisLiveSource:
    """Receives a server's announcements, and publishes only REPLICATE.

    REPLICATE is sent on each connection. It is repeated while a process is silent, because only an
    answer proves that the process is running.

    :param channels: the server's channels
    :param link: makes the connections for this owner; they are re-established when lost
    :ivar dialect: the server's dialect; None until something was received
    :ivar is_receiving: whether anything was received since the connections were established
    """

    def __init__(
        self,
        scheduler: Scheduler,
        channels: Channels,
        link: Callable[[RedisLiveSource], RedisPubSub],
        announcements: Announcements,
    ) -> None:
        self._scheduler = scheduler
        self._connections: RedisBusConnections | None = None
        self._channels = channels
        self._announcements = announcements
        self._reader = BusReader("", self)  # no process on the channel has an empty name
        self._unreadable = ""
        self._asked_at: float | None = None
        self._link = link(self)
        self.dialect: Dialect | None = None
        self.is_receiving = False

    def start(self) -> None:
        """Start receiving.

        :raises ConfigError: the settings can never lead to a connection
        """
        self._link.start()
        self._scheduler.spawn("ask again", self._ask_periodically())

    async def stop(self) -> None:
        """Stop receiving."""
        await self._link.stop()

    @property
    def bad(self) -> int:
        """The number of messages that could not be parsed."""
        return self._reader.bad

    @property
    def trouble(self) -> str | None:
        """Why nothing is received, or not everything, for people; None if all is well."""
        if self._asked_at is None:
            return f"no Redis: {printable(self._link.fault or 'the connection is lost')}"
        if not self.is_receiving and self._scheduler.seconds() - self._asked_at >= ANSWER_TIMEOUT_S:
            channel = printable(self._channels.main)
            return f"nothing was heard on channel {channel}; is that the server's name?"
        if self.bad:
            return f"{self.bad} messages could not be read; the first: {self._unreadable}"
        return None

    # -- the owner of the connections ----------------------------------------------------

    def connected(self, connections: RedisBusConnections) -> None:
        """Ask all processes for their positions."""
        self._asked_at = self._scheduler.seconds()
        self._connections = connections
        self._ask()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Record announcements.

        Our own REPLICATE comes back to us, so a REPLICATE does not prove that a process is there.
        """
        commands = self._reader.commands(messages)
        if any(not isinstance(command, Replicate) for command in commands):
            self.is_receiving = True
            self.dialect = CURRENT
        self._announcements.received(commands)

    def disconnected(self) -> None:
        """Record that nothing can be received."""
        self._asked_at = None
        self._connections = None
        self.is_receiving = False
        self._announcements.disconnected()

    def _ask(self) -> None:
        if self._connections is not None:
            self._connections.publish(self._channels.main, [write_line(Replicate(), CURRENT)])

    async def _ask_periodically(self) -> None:
        while True:
            await self._scheduler.sleep(_POLL_INTERVAL_S)
            if self._announcements.has_silent_writer(ASK_INTERVAL_S):
                self._ask()

    # -- the log of the reader, for messages that cannot be parsed -------------------------

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Do nothing: :attr:`trouble` says it all."""

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Keep the first reason, for :attr:`trouble`."""
        self._unreadable = self._unreadable or printable(str(facts.get("error", format)))
