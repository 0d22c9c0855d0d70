"""Connects a process to the bus, wired from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Protocol

from synrepl.core.backlog import Capacity
from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.daemon.config.config import Config
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.bus.bus import Bus, BusSubscriber
from synrepl.services.bus.bus_publisher import AnnouncedWriters, BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.bus_relay import BusRelay
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.instance_guard import InstanceNameGuard
from synrepl.services.bus.master_subscriber import MasterBusSubscriber, Mirror
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.bus.proxy_announcer import ProxyAnnouncer, announce_dead_writers
from synrepl.services.status.bus_status import BusStatus
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.rows import RowCodec
from synrepl.wire.commands import Command


class PubSubConnections(Protocol):
    """The connections of a process to Redis, or to its in-memory counterpart.

    :ivar fault: why there are no connections now; None while there are
    :ivar connections: how often they were made
    :ivar cut_off: how often they ended because one side did not read
    """

    fault: str | None
    connections: int
    cut_off: int

    def start(self) -> None:
        """Connect, and reconnect whenever the connections are lost."""

    async def stop(self) -> None:
        """Close the connections."""


#: Makes the connections, given the channels to subscribe to, and the bus that uses them.
ConnectToBus = Callable[[Collection[str], Bus], PubSubConnections]


class ProcessBus:
    """A process's connection to the bus.

    :param connect_bus: makes its connections
    :param announced: the writers that it announces, whose advances ``publisher`` gets
    :param subscriber: gets what is received
    :param subscribed: names of the streams that ``subscriber`` follows
    :param user_ip: whether the process receives USER_IP
    :param follows_itself: see :class:`~synrepl.services.bus.bus_reader.BusReader`
    :param process_joined: called when another process has joined
    """

    def __init__(
        self,
        connect_bus: ConnectToBus,
        config: Config,
        catalogue: Catalogue,
        publisher: Publisher,
        announced: AnnouncedWriters,
        subscriber: BusSubscriber,
        log: Logger,
        subscribed: Collection[str] = (),
        user_ip: bool = False,
        follows_itself: bool = False,
        process_joined: Callable[[], object] = lambda: None,
    ) -> None:
        assert config.redis is not None
        channels = Channels(config.server_name, config.redis.channel_per_stream)
        name = config.instance_name
        self._where = config.redis.where
        self._name_guard = InstanceNameGuard(name, log)
        self._reader = BusReader(name, log, follows_itself, self._name_guard.handle)
        self.bus_publisher = BusPublisher(publisher, channels, announced)
        self._bus = Bus(
            channels,
            [stream.name for stream in catalogue],
            self._reader,
            subscriber,
            self.bus_publisher,
            self._name_guard,
            user_ip,
            process_joined,
        )
        heard = channels.subscriptions(subscribed, user_ip, name)
        self._pubsub = connect_bus(heard, self._bus)

    @property
    def is_connected(self) -> bool:
        """Whether the bus is connected."""
        return self._bus.is_connected

    def send(self, command: Command) -> None:
        """Send a command to all processes; dropped while the bus is not connected.

        :raises LocalProtocolError: the command is not for the bus
        """
        self._bus.send(command)

    @property
    def full(self) -> bool:
        """Whether the connection has no room for more."""
        return self._bus.full

    async def room(self) -> None:
        """Wait until the connection has room for more."""
        await self._bus.room()

    def status(self) -> BusStatus:
        """The present health of the bus connection."""
        pubsub = self._pubsub
        return BusStatus(
            where=self._where,
            connected=self.is_connected,
            fault=pubsub.fault,
            name_taken=self._name_guard.taken,
            connections=pubsub.connections,
            echoes=self._reader.echoes,
            bad=self._reader.bad,
            commands=dict(self._bus.counts),
            cut_off=pubsub.cut_off,
        )

    def start(self) -> None:
        """Connect to the bus, and reconnect whenever the connections are lost.

        :raises ConfigError: the address of Redis can never work
        """
        self._pubsub.start()

    async def stop(self) -> None:
        """Disconnect."""
        await self._pubsub.stop()


class MasterBus:
    """A master's connection to the bus.

    It announces for writers that are not on the bus themselves, and follows no stream but
    those that it mirrors.

    :param mirrored: the in-memory streams of other processes, each with its writer
    :param on_command: called with received commands that are not about streams
    :param joined: called when the bus is connected
    :param left: called when the bus is disconnected
    :param process_joined: called when another process has joined
    :ivar proxy: listener of positions, which announces them on the bus
    :ivar mirror: holds the mirrored streams
    :ivar relay: relays the commands of TCP clients to the bus
    """

    def __init__(
        self,
        connect_bus: ConnectToBus,
        scheduler: Scheduler,
        config: Config,
        catalogue: Catalogue,
        mirrored: Iterable[tuple[Stream, str]],
        on_command: Callable[[Command], object],
        joined: Callable[[], object],
        left: Callable[[], object],
        process_joined: Callable[[], object],
        log: Logger,
    ) -> None:
        publisher = publisher_of(scheduler, catalogue)
        self.proxy = ProxyAnnouncer(config.instance_name, publisher)
        self.mirror = Mirror(mirrored, log)
        self._scheduler = scheduler
        self._process_bus = ProcessBus(
            connect_bus,
            config,
            catalogue,
            publisher,
            self.proxy,
            MasterBusSubscriber(on_command, self.mirror, joined, left),
            log,
            subscribed=self.mirror.streams,
            user_ip=True,
            process_joined=process_joined,
        )
        self.relay = BusRelay(
            config.instance_name,
            self._process_bus.send,
            log,
            lambda: self._process_bus.is_connected,
        )

    @property
    def is_connected(self) -> bool:
        """Whether the bus is connected."""
        return self._process_bus.is_connected

    @property
    def capacity(self) -> Capacity:
        """The back-pressure of the bus."""
        return self._process_bus

    def status(self) -> BusStatus:
        """The present health of the bus connection."""
        return self._process_bus.status()

    def start(self) -> None:
        """Connect; see :meth:`ProcessBus.start`."""
        self._process_bus.start()
        announcing = announce_dead_writers(
            self._scheduler, self.proxy, self._process_bus.bus_publisher
        )
        self._scheduler.spawn("announce dead writers", announcing)

    async def stop(self) -> None:
        """Disconnect."""
        await self._process_bus.stop()


def worker_bus(
    connect_bus: ConnectToBus,
    config: Config,
    catalogue: Catalogue,
    publisher: Publisher,
    own: OwnWriter,
    subscriber: BusSubscriber,
    followed: Collection[str] | None,
    process_joined: Callable[[], object],
    log: Logger,
) -> ProcessBus:
    """Make a worker's connection to the bus.

    :param own: its writer, whose advances ``publisher`` gets
    :param followed: names of the streams that it follows; None for all
    :param process_joined: called when another process has joined
    """
    subscribed = [stream.name for stream in catalogue] if followed is None else followed
    return ProcessBus(
        connect_bus,
        config,
        catalogue,
        publisher,
        own,
        subscriber,
        log,
        subscribed,
        follows_itself=True,
        process_joined=process_joined,
    )


def publisher_of(scheduler: Scheduler, catalogue: Catalogue) -> Publisher:
    """Make a publisher for all streams."""
    return Publisher(scheduler, codecs(catalogue))


@cache
def codecs(catalogue: Catalogue) -> Mapping[str, RowCodec]:
    """One codec per stream; cached, because they are costly to make, and the same for all processes."""
    return {stream.name: RowCodec(stream) for stream in catalogue}
