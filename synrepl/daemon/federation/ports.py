"""How a process reaches other servers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from synrepl.adapters.federation.addresses import AddressPolicy
from synrepl.adapters.federation.certificates import TrustedAuthorities
from synrepl.adapters.federation.endpoints import ServerConnector
from synrepl.adapters.federation.exchange import HttpsClient
from synrepl.adapters.federation.names import NameResolver, SystemHosts, SystemResolver
from synrepl.adapters.federation.transport import HttpsFederationTransport, ServerDiscovery
from synrepl.adapters.federation.well_known import WellKnownLookups
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.worker_threads import WorkerThreads
from synrepl.core.log import Logger
from synrepl.daemon.assemble.ports import FederationPorts
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.signing_key import signing_key_of

#: Threads that verify signatures. Parsing needs the interpreter's lock, and libsodium runs beside whoever has it. A second
#: thread takes up to a fifth more CPU time for the same events, because both wait for that lock.
THREADS = 1


def federation_ports(
    reactor: Any, scheduler: TwistedScheduler, config: Config, log: Logger, stops: AsyncExitStack
) -> FederationPorts | None:
    """How a process reaches other servers; None if it does not.

    :param stops: gets callbacks that close connections and end threads
    """
    section = None if config.rooms is None else config.rooms.federation
    key = signing_key_of(config)
    if section is None or key is None:
        return None
    names = NameResolver(SystemResolver(reactor), SystemHosts())
    connector = ServerConnector(
        reactor,
        names,
        AddressPolicy(section.allow_private_addresses),
        TrustedAuthorities(section.trusted_ca_files, of_system=section.trust_system_authorities),
    )
    client = HttpsClient(connector, section.spool_dir)
    stops.push_async_callback(client.close)
    discovery = ServerDiscovery(scheduler, names, WellKnownLookups(scheduler, client, log))
    threads = WorkerThreads(reactor, "signatures", THREADS)
    stops.callback(threads.stop)
    transport = HttpsFederationTransport(reactor, config.server_name, key, discovery, client)
    return FederationPorts(
        transport,
        threads,
        lambda: {"bytes": client.usage.total, "spooled": client.usage.in_files},
    )
