"""Assembles what changes memberships of users, in rooms of this server and of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synrepl.daemon.assemble.federation import FederationServices
from synrepl.daemon.assemble.inbound import InboundServices
from synrepl.daemon.assemble.partial_rooms import PartialRoomServices
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.assemble.rooms import RoomSending, RoomServices
from synrepl.daemon.config.config import Config
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.joining.handshake import JoinHandshake
from synrepl.services.federation.joining.join import JoinsLocally, RoomJoiner
from synrepl.services.federation.joining.own_membership import MembershipMaker
from synrepl.services.federation.joining.remote_invites import RemoteInvites
from synrepl.services.federation.joining.running_joins import RunningJoins
from synrepl.services.federation.joining.user_memberships import RemoteAliases, UserMemberships
from synrepl.services.federation.joining.without_join import MembershipsWithoutJoin
from synrepl.services.rooms.sending.memberships import OwnMemberships
from synrepl.services.rooms.sending.room_changes import RoomChanges
from synrepl.storage.database import Database
from synrepl.storage.rooms.tables.sent_events import SentEvent

#: The device of joins that are carried out for another process, which does not say whose they are.
_NO_DEVICE = ""


@dataclass(frozen=True, slots=True)
class JoiningServices:
    """What changes memberships of users.

    :ivar joins: the joins that run here, and in other processes
    """

    memberships: UserMemberships
    joins: RunningJoins


def assemble_joining(
    config: Config,
    ports: Ports,
    database: Database | None,
    rooms: RoomServices | None,
    federation: FederationServices | None,
    inbound: InboundServices | None,
    partial_rooms: PartialRoomServices | None,
) -> JoiningServices | None:
    """Make it; None without federation.

    :param partial_rooms: None in a process that persists no room
    """
    if database is None or rooms is None or federation is None or inbound is None:
        return None
    sending = rooms.sending
    if sending is None:
        return None
    scheduler, log, instance, name = (
        ports.scheduler,
        ports.log,
        config.instance_name,
        config.server_name,
    )
    client = federation.client
    maker = MembershipMaker(name, federation.own_keys.signing_key)
    joiner = None
    if partial_rooms is not None:
        joiner = _joiner(config, ports, database, sending, federation, maker, partial_rooms)
    joins = RunningJoins(scheduler, joiner, rooms.writers, ports.forwarder, instance, log)
    joins.add_actions(ports.actions)
    memberships = UserMemberships(
        scheduler,
        database,
        sending.sender,
        sending.changes,
        RemoteAliases(OwnMemberships(sending.changes, sending.aliases), client, name),
        joins,
        MembershipsWithoutJoin(scheduler, client, maker, inbound.memberships, log),
        RemoteInvites(database, client, maker, sending.sender, inbound.arrivals),
        log,
    )
    return JoiningServices(memberships, joins)


def _joiner(
    config: Config,
    ports: Ports,
    database: Database,
    sending: RoomSending,
    federation: FederationServices,
    maker: MembershipMaker,
    partial_rooms: PartialRoomServices,
) -> RoomJoiner:
    scheduler, log = ports.scheduler, ports.log
    handshake = JoinHandshake(
        scheduler,
        database,
        federation.client,
        federation.verifier,
        maker,
        partial_rooms.joins,
        partial_rooms.full_joins,
        log,
    )
    return RoomJoiner(
        scheduler,
        database,
        handshake,
        joins_locally(sending.changes),
        config.instance_name,
        config.server_name,
        log,
    )


def joins_locally(changes: RoomChanges) -> JoinsLocally:
    """Joins of rooms that this server can judge."""

    async def join(user_id: str, room_id: str, content: Mapping[str, Any]) -> SentEvent | None:
        return await changes.join(ClientIdentity(user_id, _NO_DEVICE), room_id, content)

    return join
