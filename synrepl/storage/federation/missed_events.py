"""What a destination has missed: everything if it is little, otherwise the newest event of each room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from synrepl.rooms import server_of
from synrepl.storage.database import Transaction
from synrepl.storage.federation.outgoing_events import IS_SENT, TO_SEND, ToSend
from synrepl.storage.rooms.tables.numbers import room_by_number
from synrepl.storage.rooms.tables.partial_rooms import servers_at_join
from synrepl.storage.rooms.visibility.audience import JOIN
from synrepl.storage.rooms.visibility.server_memberships import server_memberships

#: The newest events of a room that are looked at, of which the destination is to get one or all.
_NEWEST = 51

#: Events by which members of the destination were removed from a room, the newest of which it is to get.
_NEWEST_REMOVALS = 5

#: The rooms that a server ever was in: the smallest number, and for each the next.
_ROOMS = """
    WITH RECURSIVE server_rooms AS (
        (SELECT room_no FROM synrepl._room_keys WHERE type = 'm.room.member'
            AND (CASE WHEN strpos(state_key, ':') = 0 THEN ''
                 ELSE substr(state_key, strpos(state_key, ':') + 1) END) = %(server)s
          ORDER BY room_no LIMIT 1)
        UNION ALL
        SELECT (SELECT k.room_no FROM synrepl._room_keys k WHERE k.type = 'm.room.member'
                   AND (CASE WHEN strpos(k.state_key, ':') = 0 THEN ''
                        ELSE substr(k.state_key, strpos(k.state_key, ':') + 1) END) = %(server)s
                   AND k.room_no > s.room_no ORDER BY k.room_no LIMIT 1)
          FROM server_rooms s WHERE s.room_no IS NOT NULL)
    SELECT r.room_no, n.stream_id
      FROM (SELECT room_no FROM server_rooms WHERE room_no IS NOT NULL
             UNION SELECT room_no FROM synrepl._partial_room_servers WHERE server_name = %(server)s) AS r
     CROSS JOIN LATERAL (
            SELECT e.stream_id FROM synrepl._room_events e WHERE e.room_no = r.room_no
               AND e.stream_id > %(after)s AND e.stream_id <= %(upto)s AND """
_ROOMS += IS_SENT + " ORDER BY e.stream_id DESC LIMIT 1) AS n ORDER BY n.stream_id"


class MissedEvents(NamedTuple):
    """What a destination has missed.

    :ivar stream_ids: of the events that it is to get, ascending
    :ivar upto: what it has missed up to here is among them
    :ivar are_all: nothing between them was left out
    """

    stream_ids: Sequence[int]
    upto: int
    are_all: bool


def missed_events(
    txn: Transaction, server: str, own: str, after: int, upto: int, most: int, most_rooms: int
) -> MissedEvents:
    """What a server has missed of the events with a stream ID above ``after`` and not above ``upto``.

    :param own: the name of this server
    :param most: events that it gets even if they are in one room; of more, it gets the newest of each room
    :param most_rooms: maximum number of rooms that are looked at
    """
    txn.execute(_ROOMS, {"server": server, "after": after, "upto": upto})
    rooms = txn.fetchall()
    reached = upto
    if len(rooms) > most_rooms:
        rooms = rooms[:most_rooms]
        reached = int(rooms[-1][1])
    missed: list[list[int]] = []
    count = 0
    are_all = len(rooms) <= most
    for room_no, _ in rooms:
        limit = _NEWEST if are_all else 1
        found = _missed_in(txn, room_no, server, own, after, reached, limit)
        missed.append(found)
        count += len(found)
        are_all = are_all and count <= most and len(found) < _NEWEST
    if not are_all:
        missed = [found[:1] for found in missed]
    stream_ids = sorted(each for found in missed for each in found)
    return MissedEvents(stream_ids, reached, are_all)


def _missed_in(
    txn: Transaction, room_no: int, server: str, own: str, after: int, upto: int, limit: int
) -> list[int]:
    """Events of a room that a server is to get, the newest first."""
    newest = _events(txn, room_no, after, upto, limit)
    found = _sent_to(txn, newest, server, own)
    if not found and newest:
        removals = _removals(txn, room_no, server, after, upto)
        found = _sent_to(txn, removals, server, own)[:1]
    return found


def _events(txn: Transaction, room_no: int, after: int, upto: int, limit: int) -> Sequence[ToSend]:
    txn.execute(
        f"SELECT {TO_SEND} FROM synrepl._room_events e JOIN synrepl._event_types t USING (type_no)"
        f" WHERE e.room_no = %s AND e.stream_id > %s AND e.stream_id <= %s AND {IS_SENT}"
        " ORDER BY e.stream_id DESC LIMIT %s",
        (room_no, after, upto, limit),
    )
    return [ToSend._make(row) for row in txn.fetchall()]


def _removals(
    txn: Transaction, room_no: int, server: str, after: int, upto: int
) -> Sequence[ToSend]:
    """Events of a room about members of a server, the newest first: with the last one, it may have left."""
    txn.execute(
        f"SELECT {TO_SEND} FROM synrepl._room_events e JOIN synrepl._event_types t USING (type_no)"
        " WHERE e.room_no = %s AND e.stream_id > %s AND e.stream_id <= %s"
        f" AND {IS_SENT} AND e.slot IN (SELECT slot FROM synrepl._room_keys"
        "  WHERE room_no = %s AND type = 'm.room.member' AND (CASE WHEN strpos(state_key, ':') = 0 THEN ''"
        "  ELSE substr(state_key, strpos(state_key, ':') + 1) END) = %s)"
        " ORDER BY e.stream_id DESC LIMIT %s",
        (room_no, after, upto, room_no, server, _NEWEST_REMOVALS),
    )
    return [ToSend._make(row) for row in txn.fetchall()]


def _sent_to(txn: Transaction, events: Sequence[ToSend], server: str, own: str) -> list[int]:
    """Those of some events of a room that go to a server."""
    if not events:
        return []
    room_no = events[0].room_no
    groups = {each.group_before for each in events}
    members = server_memberships(txn, room_by_number(txn, room_no), server, groups)
    at_join = _is_at_join(txn, events, server)
    return [
        each.stream_id
        for each in events
        if server_of(each.sender) != server
        and (not each.is_partial or server_of(each.sender) == own)
        and (
            members[each.group_before] == JOIN
            or (each.is_partial and at_join)
            or (each.removed is not None and server_of(each.removed) == server)
        )
    ]


def _is_at_join(txn: Transaction, events: Iterable[ToSend], server: str) -> bool:
    """Whether a server was in a partial room before the join."""
    partial = {each.room_no for each in events if each.is_partial}
    return any(server in servers_at_join(txn, room_no) for room_no in partial)
