"""Assembles what a process has to do with other servers."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.slices import Slices
from synrepl.daemon.assemble.ports import FederationPorts, Ports
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.signing_key import signing_key_of
from synrepl.services.federation.backing_off import BackOffTransport
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.keys.fetching import Notary
from synrepl.services.federation.keys.key_ring import ServerKeyRing
from synrepl.services.federation.keys.own_keys import OwnKeys
from synrepl.services.federation.verifying import EventVerifier
from synrepl.storage.database import Database


@dataclass(frozen=True, slots=True)
class FederationServices:
    """What a process has to do with other servers.

    :ivar transport: sends requests, and leaves servers that have failed alone
    :ivar client: the endpoints of other servers
    :ivar keys: of other servers
    """

    ports: FederationPorts
    transport: BackOffTransport
    client: FederationClient
    own_keys: OwnKeys
    keys: ServerKeyRing
    verifier: EventVerifier


def assemble_federation(
    config: Config, ports: Ports, database: Database | None
) -> FederationServices | None:
    """Make what asks other servers; None if it is not configured."""
    section = None if config.rooms is None else config.rooms.federation
    key = signing_key_of(config)
    if section is None or key is None or database is None or ports.federation is None:
        return None
    scheduler, log = ports.scheduler, ports.log
    acl = None if section.server_acl is None else section.server_acl.acl
    transport = BackOffTransport(scheduler, database, ports.federation.transport, log, acl)
    client = FederationClient(transport, config.server_name, Slices(scheduler))
    own_keys = OwnKeys(scheduler, database, config.server_name, key)
    notaries = [Notary(each.server_name, each.keys) for each in section.trusted_key_servers]
    keys = ServerKeyRing(scheduler, database, own_keys, client, notaries, log)
    verifier = EventVerifier(scheduler, keys, ports.federation.threads, log)
    return FederationServices(ports.federation, transport, client, own_keys, keys, verifier)
