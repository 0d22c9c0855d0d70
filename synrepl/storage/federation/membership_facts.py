"""What must be known before a user of this server changes a membership that may need other servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from synrepl.rooms import (
    BadEvent,
    Event,
    is_user_id,
    parse_event,
    room_version,
    rooms_that_authorise,
    server_of,
)
from synrepl.storage.database import Transaction
from synrepl.storage.federation.inbound_rooms import inbound_rooms, some_servers
from synrepl.storage.federation.remote_memberships import remote_membership, shown_states
from synrepl.storage.rooms.reading.client_rooms import current_events, membership_of
from synrepl.storage.rooms.tables.numbers import RoomRow, find_room
from synrepl.storage.rooms.tables.partial_rooms import partial_room

#: Servers of a room that are considered.
MAX_SERVERS = 50

_RULES = ("m.room.create", "m.room.join_rules")


class MembershipFacts(NamedTuple):
    """What is known of a room and of a user's membership in it.

    :ivar version: of the room; None if it is not stored
    :ivar is_ours: whether users of this server are in it
    :ivar is_partial: whether its full state is still unknown
    :ivar membership: of the user; None without any
    :ivar remote: the event of the membership, in a room that this server is not in
    :ivar shown_by: servers of those whose state was shown with it
    :ivar is_restricted: whether members of other rooms may join, and this server has the state that says so
    :ivar joined_via: the server by which a partial room was joined
    :ivar servers: some that are or were in it, without this one
    """

    version: str | None
    is_ours: bool
    is_partial: bool
    membership: str | None
    remote: Event | None
    shown_by: Sequence[str]
    is_restricted: bool
    joined_via: str | None
    servers: Sequence[str]

    @property
    def is_local(self) -> bool:
        """Whether this server can judge what its users do in the room."""
        return self.is_ours and not self.is_partial


def membership_facts(
    txn: Transaction, room_id: str, user_id: str, server_name: str
) -> MembershipFacts:
    """What is known of a room and of a user's membership in it.

    :param server_name: of this server
    """
    room = find_room(txn, room_id)
    if room is None:
        return MembershipFacts(None, False, False, None, None, (), False, None, ())
    ours = inbound_rooms(txn, [room_id], server_name)
    is_ours = room_id in ours and ours[room_id].has_users
    partial = partial_room(txn, room.room_no)
    membership, remote, shown_by = membership_of(txn, room.room_no, user_id), None, []
    found = remote_membership(txn, user_id, room_id)
    if found is not None:
        membership = found[0]
        remote = _parsed(room, found[1])
        shown_by = _shown_by(txn, room, user_id)
    servers = [each for each in some_servers(txn, room.room_no, MAX_SERVERS) if each != server_name]
    return MembershipFacts(
        room.version,
        is_ours,
        partial is not None,
        membership,
        remote,
        shown_by,
        is_ours and bool(rooms_that_authorise(current_events(txn, room_id, _RULES))),
        None if partial is None else partial.joined_via,
        servers,
    )


def newest_device_list(txn: Transaction) -> int:
    """The position of the stream ``device_lists``; 0 without it."""
    txn.execute("SELECT to_regclass('synrepl.device_lists') IS NOT NULL")
    if not txn.fetchone()[0]:
        return 0
    txn.execute("SELECT coalesce(max(stream_id), 0) FROM synrepl.device_lists")
    return int(txn.fetchone()[0])


def _parsed(room: RoomRow, raw: bytes) -> Event | None:
    try:
        return parse_event(raw, room_version(room.version))
    except BadEvent:
        return None


class _Stripped(msgspec.Struct):
    sender: str


def _shown_by(txn: Transaction, room: RoomRow, user_id: str) -> list[str]:
    """The servers of the senders of what was shown of a room."""
    _, shown = shown_states(txn, user_id, [room.room_no]).get(room.room_no, (b"", ()))
    senders = [msgspec.json.decode(each, type=_Stripped).sender for each in shown]
    return list(dict.fromkeys(server_of(each) for each in senders if is_user_id(each)))
