"""A master's services, assembled as the daemon assembles them, around a store in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.adapters.tcp.master import MasterFactory
from synrepl.core.log import Logger
from synrepl.daemon.assemble import MasterServices, Ports, assemble_master
from synrepl.daemon.assemble.ports import unchanged
from synrepl.daemon.config.config import (
    AuditCachesConfig,
    ListenerConfig,
    MasterConfig,
    RetentionConfig,
)
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.secret import Secret
from synrepl.daemon.process_bus import ConnectToBus
from synrepl.daemon.replication_listener import listener_factory
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.consumer import Subscription
from synrepl.services.handlers import Handler
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.wire.commands import Command

T = TypeVar("T")

_DEFAULT_LIMITS = ConnectionLimits()


class CommandRecorder(Handler):
    """Records the commands of other processes.

    :ivar commands: each with its source
    """

    streams = frozenset()

    def __init__(self) -> None:
        self.commands: list[tuple[str, Command]] = []

    async def on_command(self, source: str, command: Command) -> None:
        """Record a command."""
        self.commands.append((source, command))


async def once(step: Callable[[], Awaitable[T]]) -> T:
    """Run a step of a start once, since the database is there."""
    return await step()


def build_master(
    scheduler: TwistedScheduler,
    store: FactStore,
    coherence: Coherence,
    catalogue: Catalogue,
    log: Logger,
    *,
    name: str = "master",
    own: Sequence[Stream] | None = None,
    handlers: Sequence[Subscription] = (),
    senders: tuple[str, ...] = ("sender1",),
    queued_lines: int = 10_000,
    redis: RedisConfig | None = None,
    connect_bus: ConnectToBus | None = None,
    poll_s: float = 1.0,
    watched: Callable[[PositionListener], PositionListener] = unchanged,
) -> MasterServices:
    """Build the services of a master of ``example.org`` with one listener; nothing has started.

    :param own: the streams that it writes; None for all
    :param senders: the federation senders of its configuration
    :param queued_lines: maximum number of lines queued for a client that does not read
    :param redis: None for a master without a bus, likewise ``connect_bus``
    :param poll_s: seconds between two polls of the store
    :param watched: see :class:`~synrepl.daemon.assemble.Ports`
    """
    config = MasterConfig(
        server_name="example.org",
        instance_name=name,
        database=Secret("dbname=none", "dbname=none"),
        listeners=(ListenerConfig(port=0),),
        federation_sender_instances=senders,
        live_queue_commands=queued_lines,
        redis=redis,
        poll_interval=poll_s,
        retention=RetentionConfig(every=60.0, keep=600.0, max=86_400.0),
        audit_caches=AuditCachesConfig(every=0.0),
    )
    ports = Ports(
        scheduler=scheduler,
        log=log,
        coherence=coherence,
        until_done=once,
        connect_bus=connect_bus,
        handlers=handlers,
        watched=watched,
    )
    written = list(catalogue) if own is None else own
    return assemble_master(config, ports, store, None, catalogue, written)


def build_listener(
    services: MasterServices, connections: ConnectionLimits = _DEFAULT_LIMITS
) -> MasterFactory:
    """Build the protocol factory of the only listener of a master.

    :param connections: limits on its connections
    """
    config = services.config
    (listener,) = config.listeners
    return listener_factory(
        services.ports.scheduler, config, listener, services.master, connections, services.slices
    )
