"""Opens the replication listeners of a master."""

from __future__ import annotations

from typing import Any

from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.adapters.tcp.master import MasterFactory
from synrepl.core.clock import Scheduler
from synrepl.core.slices import Slices
from synrepl.daemon.config.config import ListenerConfig, MasterConfig
from synrepl.daemon.http.listener import listen
from synrepl.services.serving.master import Master
from synrepl.streams.definition import Generation
from synrepl.wire.dialects import DIALECTS
from synrepl.wire.session import SessionLimits


def open_listener(
    reactor: Any,
    scheduler: Scheduler,
    config: MasterConfig,
    listener: ListenerConfig,
    master: Master,
    connections: ConnectionLimits,
    slices: Slices,
) -> Any:
    """Listen on the port of one listener.

    :param connections: limits on its connections
    :param slices: budget for parsing input, shared by all listeners
    :returns: the port, as ``listenTCP`` does
    """
    factory = listener_factory(scheduler, config, listener, master, connections, slices)
    return listen(reactor, "listeners", listener.port, factory, listener.bind_address)


def listener_factory(
    scheduler: Scheduler,
    config: MasterConfig,
    listener: ListenerConfig,
    master: Master,
    connections: ConnectionLimits,
    slices: Slices,
) -> MasterFactory:
    """Make the protocol factory of one listener; see :func:`open_listener`."""
    limits = SessionLimits(
        line=listener.line_limit,
        peer_line=listener.line_limit,
        queued_lines=config.live_queue_commands,
        ping_timeout=config.ping_timeout,
    )
    return MasterFactory(
        scheduler,
        master,
        config.server_name,
        DIALECTS[listener.dialect],
        listener.generation,
        limits,
        Generation(listener.legacy_rows),
        connections,
        slices,
    )
