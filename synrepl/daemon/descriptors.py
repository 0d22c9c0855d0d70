"""Divides the file descriptors of a process between its listeners.

Each connection needs one, and a process without free descriptors can neither answer
``/health`` nor connect to its database. The limits of the listeners therefore add up to
fewer descriptors than there are, and HTTP has a share that replication cannot use.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import NamedTuple

from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.core.log import Logger
from synrepl.daemon.config.client_api import ClientApiConfig
from synrepl.daemon.config.config import Config, HttpConfig, ListenerConfig, MasterConfig
from synrepl.daemon.config.federation import FederationConfig

#: Descriptors reserved for everything else: the database, Redis, logs, handlers, and connections
#: that are being closed. A process with few descriptors reserves half of them.
RESERVED = 200


class DescriptorShares(NamedTuple):
    """Connection limits of all listeners.

    :ivar descriptors: descriptor limit of the process
    :ivar cut: whether the limits are lower than those in the configuration
    """

    descriptors: int
    http: ConnectionLimits
    listeners: tuple[ConnectionLimits, ...]
    clients: ConnectionLimits
    federation: ConnectionLimits
    cut: bool

    def warn_if_cut(self, log: Logger) -> None:
        """Log a warning if the configured limits had to be lowered."""
        if self.cut:
            log.warn(
                "{descriptors} file descriptors are not enough for max_connections of all "
                "listeners: http is limited to {http} connections, replication to {listeners}, "
                "Matrix clients to {clients}, other servers to {federation}; "
                "raise the limit (LimitNOFILE in systemd, 'ulimit -n'), or lower max_connections",
                descriptors=self.descriptors,
                http=self.http.total,
                listeners=sum(each.total for each in self.listeners),
                clients=self.clients.total,
                federation=self.federation.total,
            )


def divide_descriptors(
    http: HttpConfig | None,
    listeners: Sequence[ListenerConfig] = (),
    descriptors: int | None = None,
    clients: ClientApiConfig | None = None,
    federation: FederationConfig | None = None,
) -> DescriptorShares:
    """Divide the descriptors between HTTP and the other listeners.

    :param descriptors: limit of the process; by default, RLIMIT_NOFILE
    """
    if descriptors is None:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted_http = 0 if http is None else http.max_connections
    wanted = sum(each.max_connections for each in listeners)
    wanted += sum(each.max_connections for each in (clients, federation) if each is not None)
    left = wanted_http + wanted
    if descriptors != resource.RLIM_INFINITY:
        left = min(left, max(2, descriptors - min(RESERVED, descriptors // 2)))
    for_http = min(wanted_http, max(left // 2, left - wanted))
    for_listeners = left - for_http
    return DescriptorShares(
        descriptors,
        _limits(http, for_http, wanted_http),
        tuple(_limits(each, for_listeners, wanted) for each in listeners),
        _limits(clients, for_listeners, wanted),
        _limits(federation, for_listeners, wanted),
        left < wanted_http + wanted,
    )


def divide_for(config: Config) -> DescriptorShares:
    """:func:`divide_descriptors` for the listeners of a process."""
    return divide_descriptors(
        config.http,
        config.listeners if isinstance(config, MasterConfig) else (),
        clients=None if config.rooms is None else config.rooms.clients,
        federation=_with_listener(config),
    )


def _with_listener(config: Config) -> FederationConfig | None:
    """The configuration of federation, if it has a listener."""
    section = None if config.rooms is None else config.rooms.federation
    return None if section is None or section.port is None else section


def _limits(
    section: HttpConfig | ListenerConfig | ClientApiConfig | FederationConfig | None,
    given: int,
    wanted: int,
) -> ConnectionLimits:
    """The limits of one listener, scaled down by ``given / wanted``."""
    if section is None:
        return ConnectionLimits(0, 0)
    total = max(1, section.max_connections * given // wanted)
    of_address = max(1, section.max_connections_per_address * given // wanted)
    return ConnectionLimits(total, min(of_address, total))
