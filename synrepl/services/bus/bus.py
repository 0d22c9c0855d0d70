"""A process on a bus: what it hears goes to its ear, what its writers do is said.

Everybody hears everything, so there are no ends: all are asked by one
REPLICATE, and all answer. The order on a new connection is that of real
processes: the subscription stands before anything is said, then REPLICATE, then
where the own writers are, unasked. (Recordings of real processes on Redis.)
Before that we make sure, among ourselves, that nobody else has our name.

What was said and lost, with a connection or by a full queue, needs no memory
here. Losing anything ends the connections, and on the next ones the POSITIONs
show the gap (R3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from synrepl.services.bus.bus_publisher import BusConnections, BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.instance_guard import InstanceNameGuard
from synrepl.services.following.follower import Upstream
from synrepl.wire.closing import CloseReason
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Command, Replicate, UserIp
from synrepl.wire.dialects import CURRENT, Dialect


class BusSubscriber(Protocol):
    """Who is told what is heard: a :class:`~synrepl.services.following.follower.Follower`, say."""

    def connected(self, upstream: Upstream) -> None:
        """The bus can be heard, and spoken to."""

    def received(self, commands: Sequence[Command]) -> None:
        """Others said something."""

    def disconnected(self) -> None:
        """The bus cannot be heard any more."""


class Bus:
    """The bus, for the ear a master like any other; see :class:`.follow.Upstream`.

    :param streams: the names of all streams there are
    :param namesakes: asked before anything is said, where the channel for that is heard
    :param user_ip: the channel for USER_IP is heard
    :param process_joined: called when a process has joined, after it was told of positions
    :ivar counts: commands heard, by verb
    """

    def __init__(
        self,
        channels: Channels,
        streams: Collection[str],
        reader: BusReader,
        subscriber: BusSubscriber,
        bus_publisher: BusPublisher,
        name_guard: InstanceNameGuard | None = None,
        user_ip: bool = False,
        process_joined: Callable[[], object] = lambda: None,
    ) -> None:
        self._channels = channels
        self._streams = streams
        self._reader = reader
        self._subscriber = subscriber
        self._bus_publisher = bus_publisher
        self._name_guard = name_guard
        self._user_ip = user_ip
        self._process_joined = process_joined
        self._connections: BusConnections | None = None
        self._joined = False
        self.counts: dict[str, int] = {}

    @property
    def is_connected(self) -> bool:
        """True while the bus can be heard and spoken to."""
        return self._joined

    # -- for the connections ------------------------------------------------------------

    def connected(self, connections: BusConnections) -> None:
        """The subscription stands, and lines can be said."""
        self._connections = connections
        if self._name_guard is None:
            self._join()
        else:
            channel = self._channels.of_process(self._reader.name)
            self._name_guard.claim(
                lambda line: connections.publish(channel, [line]), self._join, connections.close
            )

    def disconnected(self) -> None:
        """Either connection is gone."""
        self._connections = None
        self._reader.forget_sent()
        if self._name_guard is not None:
            self._name_guard.disconnected()
        if self._joined:
            self._joined = False
            self._bus_publisher.leave()
            self._subscriber.disconnected()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Messages, in order.

        However many ask for positions in them, all hear the one answer.
        """
        commands = self._reader.commands(messages)
        if not self._joined:
            return
        asked = False
        for command in commands:
            self.counts[command.verb] = self.counts.get(command.verb, 0) + 1
            asked = asked or type(command) is Replicate
        if asked:
            commands = [command for command in commands if type(command) is not Replicate]
        if commands:
            self._subscriber.received(commands)
        if asked:
            self._bus_publisher.announce()
            self._process_joined()

    def _join(self) -> None:
        """The name is ours: speak."""
        assert self._connections is not None
        self._joined = True
        self._subscriber.connected(self)
        self._bus_publisher.join(self._connections, self._streams)

    # -- for the ear: Upstream ----------------------------------------------------------

    @property
    def dialect(self) -> Dialect:
        """How everybody is spoken to."""
        return CURRENT

    def send(self, command: Command) -> None:
        """Say something to all.

        :raises LocalProtocolError: the dialect has no such command
        """
        line = write_line(command, CURRENT)
        if self._connections is None or not self._joined:
            return
        # A REPLICATE of one's own is answered like any other.
        comes_back = type(command) is not UserIp or self._user_ip
        if comes_back and type(command) is not Replicate:
            self._reader.note_sent(line)
        self._connections.publish(self._channels.of_command(command), [line])

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Give the connections up, without a word to those who did nothing wrong."""
        if self._connections is not None:
            self._connections.close(text or reason.value)

    @property
    def full(self) -> bool:
        """True while the connection does not accept more."""
        return self._connections is not None and self._connections.full

    async def room(self) -> None:
        """Wait until it accepts more."""
        if self._connections is not None:
            await self._connections.room()

    def pause(self) -> None:
        """Listen no more for now: Redis keeps some megabytes, and then ends the connection."""
        if self._connections is not None:
            self._connections.pause()

    def resume(self) -> None:
        """Listen again."""
        if self._connections is not None:
            self._connections.resume()
