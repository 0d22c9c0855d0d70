"""The place of a process on the bus, wired from its configuration."""

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
from synrepl.services.bus.master_subscriber import MasterBusSubscriber
from synrepl.services.bus.mirror import Mirror
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.bus.proxy_announcer import ProxyAnnouncer, announce_dead_writers
from synrepl.services.status.bus_status import BusStatus
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.rows import RowCodec
from synrepl.wire.commands import Command


class PubSubConnections(Protocol):
    """The connections of a process to Redis, or to something like it.

    :ivar fault: why they cannot be used now; None while they can
    :ivar connections: how often they were made
    :ivar cut_off: how often they were closed because one side did not read
    """

    fault: str | None
    connections: int
    cut_off: int

    def start(self) -> None:
        """Connect, and again whenever they are lost."""

    async def stop(self) -> None:
        """Close them."""


#: Makes the connections: given the channels to subscribe to, and what hears and speaks.
ConnectToBus = Callable[[Collection[str], Bus], PubSubConnections]


class ProcessBus:
    """A process's place on the bus.

    :param join: makes its connections
    :param spoken: the writers that it speaks for, whose moves ``publisher`` gets
    :param hears: the names of the streams that ``subscriber`` follows
    :param user_ip: it is the one that takes USER_IP
    :param follows_itself: see :class:`~synrepl.services.bus.bus_reader.BusReader`
    :param asked: called when another process has joined
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
        """True while the bus can be heard and spoken to."""
        return self._bus.is_connected

    def say(self, command: Command) -> None:
        """Say a command to all; to nobody while the bus does not stand.

        :raises LocalProtocolError: nobody on a bus says that
        """
        self._bus.send(command)

    @property
    def full(self) -> bool:
        """True while the connection does not accept more."""
        return self._bus.full

    async def room(self) -> None:
        """Wait until it accepts more."""
        await self._bus.room()

    def status(self) -> BusStatus:
        """How it is with the bus now."""
        pubsub = self._pubsub
        return BusStatus(
            where=self._where,
            standing=self.is_connected,
            fault=pubsub.fault,
            name_taken=self._name_guard.taken,
            connections=pubsub.connections,
            echoes=self._reader.echoes,
            bad=self._reader.bad,
            commands=dict(self._bus.counts),
            cut_off=pubsub.cut_off,
        )

    def start(self) -> None:
        """Join, and come back whenever the connections are lost.

        :raises ConfigError: it could never join like this
        """
        self._pubsub.start()

    async def stop(self) -> None:
        """Leave."""
        await self._pubsub.stop()


class MasterBus:
    """A master's place on the bus: it speaks for whoever cannot, and follows nothing.

    :param mirrored: the streams that another process keeps in memory, each with its writer
    :param handle: gets what others say that is not about streams
    :param joined: called whenever the bus can be heard again
    :param left: called when the bus cannot be heard any more
    :param asked: called when another process has joined
    :ivar spokesman: to be told of all movements
    :ivar mirror: has the mirrored streams
    :ivar relay: to be told of what TCP clients say
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
            config.instance_name, self._process_bus.say, log, lambda: self._process_bus.is_connected
        )

    @property
    def is_connected(self) -> bool:
        """True while the bus can be heard and spoken to."""
        return self._process_bus.is_connected

    @property
    def capacity(self) -> Capacity:
        """Back-pressure for what is said."""
        return self._process_bus

    def status(self) -> BusStatus:
        """How it is with the bus now."""
        return self._process_bus.status()

    def start(self) -> None:
        """Join; see :meth:`ProcessBus.start`."""
        self._process_bus.start()
        look = announce_dead_writers(self._scheduler, self.proxy, self._process_bus.bus_publisher)
        self._scheduler.spawn("speak for the dead", look)

    async def stop(self) -> None:
        """Leave."""
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
    """A worker's place on the bus.

    :param asked: called when another process has joined
    :param own: its writer, which tells ``publisher``
    :param followed: the names of the streams it follows; None for all
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
    """A publisher for all streams."""
    return Publisher(scheduler, codecs(catalogue))


@cache
def codecs(catalogue: Catalogue) -> Mapping[str, RowCodec]:
    """One codec per stream: they are costly to make, and the same for all processes."""
    return {stream.name: RowCodec(stream) for stream in catalogue}
