"""Changes of devices that servers were not told of, because they were not known to be in a partial room.

Source: seed "How do faster joins work?" and the proposal on faster joins, "Device lists": the position of the stream
``device_lists`` at the join is kept with the room. Whoever sends device lists to other servers takes these rows.
"""

from __future__ import annotations

from collections.abc import Collection

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.partial_rooms import partial_room, servers_in_room
from synrepl.storage.rooms.tables.pending_rows import array_text


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
    servers = servers_in_room(txn, room_no) - set(told) - {server_name}
    if room is None or not has_stream or not servers:
        return 0
    txn.execute(
        "INSERT INTO synrepl._device_list_pokes (destination, user_id)"
        " SELECT s.destination, u.user_id FROM unnest(%s::text[]) AS s (destination)"
        " CROSS JOIN (SELECT DISTINCT m.user_id FROM synrepl._memberships m"
        "  JOIN synrepl.device_lists d ON d.entity = m.user_id AND d.stream_id > %s"
        "  WHERE m.room_no = %s AND (m.membership = 'join' OR %s)"
        "  AND substr(m.user_id, strpos(m.user_id, ':') + 1) = %s) AS u"
        " ON CONFLICT DO NOTHING",
        (array_text(sorted(servers)), room.device_lists_stream_id, room_no, has_left, server_name),
    )
    return txn.rowcount
