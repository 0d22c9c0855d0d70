"""What must be known of rooms before events of other servers are taken in, read in one transaction for many rooms."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from synrepl.core import jsons
from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text

#: The server of a user ID, as the index of members by server has it.
SERVER_SQL = "substr({user}, strpos({user}, ':') + 1)"

_SERVER = SERVER_SQL.format(user="m.user_id")


class InboundRoom(NamedTuple):
    """A stored room.

    :ivar moved_to: the process that it was moved to; None if the hash of its ID decides
    :ivar has_users: whether users of this server are in it
    :ivar acl_no: number of the event with its server ACL; None if it has none
    """

    room_no: int
    room_id: str
    version: str
    moved_to: str | None
    has_users: bool
    acl_no: int | None


# What has an OFFSET is run for each room, by its number.
_ROOMS = Script(
    [
        PlannedOnce(
            "SELECT r.room_no, r.room_id, r.version, r.writer, EXISTS ("
            "  SELECT FROM synrepl._memberships m WHERE m.room_no = r.room_no"
            f"  AND m.membership = 'join' AND {_SERVER} = %s), acl.event_no"
            " FROM synrepl._rooms r LEFT JOIN LATERAL (SELECT c.event_no FROM synrepl._room_keys k"
            "  JOIN synrepl._current_state c USING (room_no, slot) WHERE k.room_no = r.room_no"
            "  AND k.type = 'm.room.server_acl' AND k.state_key = '' OFFSET 0) AS acl ON true"
            " WHERE r.room_id = ANY (%s::text[])"
        )
    ]
)


def inbound_rooms(
    txn: Transaction, room_ids: Collection[str], server_name: str
) -> dict[str, InboundRoom]:
    """Stored rooms by ID; the others are left out.

    :param server_name: of this server
    """
    storable = [each for each in room_ids if "\0" not in each]
    if not storable:
        return {}
    txn.execute(_ROOMS, (server_name, array_text(storable)))
    rooms = [InboundRoom._make(row) for row in txn.fetchall()]
    return {each.room_id: each for each in rooms}


def acl_contents(txn: Transaction, event_nos: Collection[int]) -> dict[int, Mapping[str, Any]]:
    """The contents of server ACLs by the number of their event; what is malformed is empty."""
    if not event_nos:
        return {}
    txn.execute(
        "SELECT event_no, raw FROM synrepl._room_event_json WHERE event_no = ANY (%s::bigint[])",
        (array_text(event_nos),),
    )
    found: dict[int, Mapping[str, Any]] = {each: {} for each in event_nos}
    for event_no, raw in txn.fetchall():
        try:
            content = jsons.decode(bytes(raw), "an event").get("content")
        except jsons.BadJson:
            continue
        if isinstance(content, dict):
            found[int(event_no)] = content
    return found


def is_server_in_room(txn: Transaction, room_no: int, server: str) -> bool:
    """Whether users of a server are in a room; of a partial room, also whether it was before the join."""
    if "\0" in server:
        return False
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._memberships m WHERE m.room_no = %s"
        f" AND m.membership = 'join' AND {_SERVER} = %s)"
        " OR EXISTS (SELECT FROM synrepl._partial_room_servers WHERE room_no = %s AND server_name = %s)",
        (room_no, server, room_no, server),
    )
    return bool(txn.fetchone()[0])


def some_servers(txn: Transaction, room_no: int, limit: int) -> list[str]:
    """Some servers in a room; of a partial room, also of those before the join."""
    txn.execute(
        f"(SELECT DISTINCT {_SERVER} FROM synrepl._memberships m"
        "  WHERE m.room_no = %s AND m.membership = 'join' LIMIT %s)"
        " UNION (SELECT server_name FROM synrepl._partial_room_servers WHERE room_no = %s LIMIT %s)",
        (room_no, limit, room_no, limit),
    )
    return [str(server) for (server,) in txn.fetchall()]
