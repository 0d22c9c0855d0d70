"""A process on the bus: received commands go to a subscriber, its writers are announced.

Every process receives every message, so there is no client and no server: one REPLICATE asks
all processes, and all answer. The order on a new connection is that of real Synapse processes
(from recordings on Redis): subscribe before sending anything, then send REPLICATE, then
announce the own writers without being asked. Before that, processes of synrepl make sure that
no other process has their name.

Messages that are lost, with a connection or in a full queue, need not be remembered. Any loss
ends the connections, and on the next ones the POSITIONs show the gap (R3).
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
    """Receives the commands of other processes, like a :class:`.Follower`."""

    def connected(self, upstream: Upstream) -> None:
        """Messages can be received and sent from now on."""

    def received(self, commands: Sequence[Command]) -> None:
        """Commands of other processes, in order."""

    def disconnected(self) -> None:
        """The connections are lost."""


class Bus:
    """The bus, which the subscriber uses like a connection to a master (:class:`.Upstream`).

    :param streams: the names of all streams
    :param name_guard: claims the name before anything is sent; None for no such check
    :param user_ip: whether the channel for USER_IP is subscribed to
    :param process_joined: called when a process has joined, after positions were announced to it
    :ivar counts: number of received commands, by verb
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
        """Whether messages can be received and sent."""
        return self._joined

    # -- for the connections ------------------------------------------------------------

    def connected(self, connections: BusConnections) -> None:
        """The channels are subscribed to, and lines can be published."""
        self._connections = connections
        if self._name_guard is None:
            self._join()
        else:
            channel = self._channels.of_process(self._reader.name)
            self._name_guard.claim(
                lambda line: connections.publish(channel, [line]), self._join, connections.close
            )

    def disconnected(self) -> None:
        """At least one of the connections is lost."""
        self._connections = None
        self._reader.forget_sent()
        if self._name_guard is not None:
            self._name_guard.disconnected()
        if self._joined:
            self._joined = False
            self._bus_publisher.leave()
            self._subscriber.disconnected()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Handle messages, in order.

        However many of them ask for positions, one answer serves them all.
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
        """Start to send: the name is free, or is not checked."""
        assert self._connections is not None
        self._joined = True
        self._subscriber.connected(self)
        self._bus_publisher.join(self._connections, self._streams)

    # -- for the subscriber: Upstream ----------------------------------------------------------

    @property
    def dialect(self) -> Dialect:
        """The dialect of all messages."""
        return CURRENT

    def send(self, command: Command) -> None:
        """Publish a command; dropped while not connected.

        :raises LocalProtocolError: the dialect has no such command
        """
        line = write_line(command, CURRENT)
        if self._connections is None or not self._joined:
            return
        # The process's own REPLICATE is answered like any other.
        comes_back = type(command) is not UserIp or self._user_ip
        if comes_back and type(command) is not Replicate:
            self._reader.note_sent(line)
        self._connections.publish(self._channels.of_command(command), [line])

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Close the connections. No ERROR is sent: the other processes did nothing wrong."""
        if self._connections is not None:
            self._connections.close(text or reason.value)

    @property
    def full(self) -> bool:
        """Whether the connection accepts no more at present."""
        return self._connections is not None and self._connections.full

    async def room(self) -> None:
        """Wait until the connection accepts more."""
        if self._connections is not None:
            await self._connections.room()

    def pause(self) -> None:
        """Stop reading. Redis buffers some megabytes and then closes the connection."""
        if self._connections is not None:
            self._connections.pause()

    def resume(self) -> None:
        """Read again."""
        if self._connections is not None:
            self._connections.resume()
