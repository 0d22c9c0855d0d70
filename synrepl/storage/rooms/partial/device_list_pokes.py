"""Changes of devices that servers were not told of, because they were not known to be in a partial room.

Source: seed "How do faster joins work?" and the proposal on faster joins, "Device lists": the position of the stream
``device_lists`` at the join is kept with the room. Whoever sends device lists to other servers takes these rows.
"""

from __future__ import annotations

from collections.abc import Collection

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.partial_rooms import partial_room, servers_in_room
from synrepl.storage.rooms.tables.pending_rows import array_text

_SERVER_OF = "substr({0}, strpos({0}, ':') + 1)"


def note_device_lists(
    txn: Transaction,
    room_no: int,
    told: Collection[str],
    server_name: str,
    *,
    has_left: bool = False,
) -> int:
    """Note whom to tell of changed devices of this server's users in a room, now that all its servers are known.

    :param told: the servers that were known to be in the room until now
    :param server_name: of this server
    :param has_left: whether its users have left the room, so that no more servers will be known
    :returns: the number of pairs of a server and a user
    """
    room = partial_room(txn, room_no)
    txn.execute("SELECT to_regclass('synrepl.device_lists') IS NOT NULL")
    (has_stream,) = txn.fetchone()
    if room is None or not has_stream:
        return 0
    untold = {server_name, *told}
    servers = servers_in_room(txn, room_no) - untold
    departed = _departed_servers(txn, room_no, room.join_event_id) - untold - servers
    if not servers and not departed:
        return 0
    txn.execute(
        "INSERT INTO synrepl._device_list_pokes (destination, user_id)"
        " SELECT s.destination, u.user_id FROM unnest(%(servers)s::text[]) AS s (destination)"
        " CROSS JOIN (SELECT DISTINCT m.user_id FROM synrepl._memberships m"
        "  JOIN synrepl.device_lists d ON d.entity = m.user_id AND d.stream_id > %(after)s"
        "  WHERE m.room_no = %(room)s AND (m.membership = 'join' OR %(has_left)s)"
        f"  AND {_SERVER_OF.format('m.user_id')} = %(own)s) AS u"
        " WHERE s.destination <> ALL (%(departed)s::text[]) OR EXISTS ("
        "  SELECT FROM synrepl._memberships o JOIN synrepl._memberships t USING (room_no)"
        "  WHERE o.user_id = u.user_id AND o.membership = 'join' AND t.membership = 'join'"
        f"  AND {_SERVER_OF.format('t.user_id')} = s.destination)"
        " ON CONFLICT DO NOTHING",
        {
            "servers": array_text(sorted(servers | departed)),
            "departed": array_text(sorted(departed)),
            "after": room.device_lists_stream_id,
            "room": room_no,
            "has_left": has_left,
            "own": server_name,
        },
    )
    return txn.rowcount


def _departed_servers(txn: Transaction, room_no: int, join_event_id: str) -> set[str]:
    """The servers of users who have left a room since this server joined it.

    They may have missed changes while it was not known that they were in the room, and still share another one.
    """
    txn.execute(
        f"SELECT DISTINCT {_SERVER_OF.format('m.user_id')} FROM synrepl._memberships m"
        " JOIN synrepl._room_events e USING (event_no)"
        " WHERE m.room_no = %s AND m.membership IN ('leave', 'ban') AND e.stream_id >"
        "  (SELECT j.stream_id FROM synrepl._room_events j WHERE j.event_id = %s)",
        (room_no, join_event_id),
    )
    return {str(name) for (name,) in txn.fetchall()}
