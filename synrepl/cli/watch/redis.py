"""The Redis source of ``synrepl watch``: the channel of a server's processes."""

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

#: Seconds after which nobody will answer: recorded processes take some hundredths of one.
ANSWER_TIMEOUT_S = 3.0

#: A process is asked again when it was silent for so long, in seconds: to be sure that it runs.
ASK_INTERVAL_S = 30.0
_POLL_INTERVAL_S = 1.0


class RedisLiveSource:
    """Listens to a server; says nothing but what asks all its processes for positions.

    It asks on each connection, and again while some process is silent, for only its answer
    shows that it still runs.

    :param channels: of the server
    :param link: makes the connections for this owner; they come back by themselves
    :ivar dialect: in which the server was understood; None until it was
    :ivar hears: whether anything was said there since the connections stand
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
        self._reader = BusReader("", self)  # nothing on the channel has that for its author
        self._unreadable = ""
        self._asked_at: float | None = None
        self._link = link(self)
        self.dialect: Dialect | None = None
        self.is_receiving = False

    def start(self) -> None:
        """Begin to listen.

        :raises ConfigError: no connection could ever be made like this
        """
        self._link.start()
        self._scheduler.spawn("ask again", self._ask_periodically())

    async def stop(self) -> None:
        """Listen no more."""
        await self._link.stop()

    @property
    def bad(self) -> int:
        """How many messages could not be read."""
        return self._reader.bad

    @property
    def trouble(self) -> str | None:
        """Why nothing is heard, or not everything, for a person."""
        if self._asked_at is None:
            return f"no Redis: {printable(self._link.fault or 'the connection is lost')}"
        if not self.is_receiving and self._scheduler.seconds() - self._asked_at >= ANSWER_TIMEOUT_S:
            channel = printable(self._channels.main)
            return f"nothing was heard on channel {channel}; is that the server's name?"
        if self.bad:
            return f"{self.bad} messages could not be read; the first: {self._unreadable}"
        return None

    # -- for the connections: an Owner --------------------------------------------------

    def connected(self, connections: RedisBusConnections) -> None:
        """Ask; who says something answers everybody."""
        self._asked_at = self._scheduler.seconds()
        self._connections = connections
        self._ask()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Take note. What asks, as this does, comes back, and shows nobody to be there."""
        commands = self._reader.commands(messages)
        if any(not isinstance(command, Replicate) for command in commands):
            self.is_receiving = True
            self.dialect = CURRENT
        self._announcements.received(commands)

    def disconnected(self) -> None:
        """Nothing can be heard."""
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

    # -- for messages that nobody can read: a Log ---------------------------------------

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Nothing that the trouble does not tell."""

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Keep the first reason."""
        self._unreadable = self._unreadable or printable(str(facts.get("error", format)))
