"""The rooms of a user, with the user's membership as of a vector.

``_memberships`` has the current membership. Where a vector does not cover it, the newest one that it covers counts, of
membership events and of what ``_membership_history`` has beyond them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Record, Transaction, planned
from synrepl.storage.rooms.tables.numbers import RoomRow, UnknownRoom, room_row
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.timelines.room_entries import covered_tokens
from synrepl.storage.rooms.visibility.audience import JOIN, NEVER_BITS
from synrepl.storage.rooms.visibility.audience_sql import membership_set
from synrepl.storage.rooms.visibility.covered_sql import covered_params, covered_sql
from synrepl.storage.rooms.visibility.newest_membership import newest_membership_sql
from synrepl.storage.rooms.visibility.viewer_sql import IS_BESIDE
from synrepl.storage.rooms.visibility.viewers import (
    NO_SLOT,
    HistoryPart,
    ViewerSlots,
    newest_part,
    newest_versions_sql,
)


class UserRoom(NamedTuple):
    """A room that a user has a membership in.

    :ivar slot: of the user's membership in the room's states
    :ivar membership: as of a vector; ``leave`` also if there was none
    :ivar member_no: number of the event that set it; None if there was none, or it is not known any more
    :ivar stream_id: stream ID of the fact that made it the membership; 0 if none is known
    :ivar has_event: whether an event set it; False if there was none, or none any more
    :ivar newest: stream ordering of the newest event of the room
    :ivar topological: the highest topological ordering in the room
    :ivar state_only: stream ID of the newest fact that changed the state without an event of its own
    :ivar purged: the highest stream ordering of the room's purged events; 0 if there are none
    :ivar is_forgotten: whether the user does not want to see it any more
    """

    room_no: int
    room_id: str
    version: str
    slot: int
    membership: str
    member_no: int | None
    stream_id: int
    has_event: bool
    newest: int
    topological: int
    state_only: int
    purged: int
    is_forgotten: bool


_ROOMS = """
    SELECT m.room_no, r.room_id, r.version, k.slot, m.membership, m.event_no, m.stream_id,
           m.event_no IS NOT NULL, coalesce(h.stream_id, 0), coalesce(h.topological, 0),
           coalesce(h.state_stream_id, 0), coalesce(h.purged_stream_id, 0),
           coalesce(f.event_no = m.event_no, false)
      FROM (SELECT m.room_no, m.user_id, m.membership, m.event_no, m.stream_id
              FROM synrepl._memberships m WHERE m.user_id = %(user)s
            UNION ALL
            SELECT h.room_no, %(user)s, 'leave', NULL, max(h.stream_id)
              FROM synrepl._membership_history h WHERE h.user_id = %(user)s
               AND NOT EXISTS (SELECT FROM synrepl._memberships m
                                WHERE m.room_no = h.room_no AND m.user_id = h.user_id)
             GROUP BY h.room_no) AS m
      JOIN synrepl._rooms r USING (room_no)
      JOIN synrepl._room_keys k ON k.room_no = m.room_no AND k.type = 'm.room.member'
       AND k.state_key = m.user_id
      LEFT JOIN synrepl._room_heads h ON h.room_no = m.room_no
      LEFT JOIN synrepl._forgotten_rooms f ON f.room_no = m.room_no AND f.user_id = m.user_id
     WHERE true"""


def rooms_with_membership(
    txn: Transaction,
    user: str,
    upto: PositionVector,
    room_ids: Collection[str] | None = None,
    since: PositionVector | None = None,
) -> list[UserRoom]:
    """The rooms that a user has a membership in.

    :param room_ids: only these; None: all
    :param since: also those whose membership may have changed since this vector
    """
    params: dict[str, object] = {"user": user}
    where = ""
    if room_ids is not None:
        params["rooms"] = array_text([each for each in room_ids if "\0" not in each])
        where = "r.room_id = ANY (%(rooms)s::text[])"
        if since is not None:
            params["since"] = since.linear
            where = f"({where} OR m.stream_id > %(since)s)"
        where = f" AND {where}"
    txn.execute(planned(_ROOMS + where), params)
    rooms = [UserRoom._make(row) for row in txn.fetchall()]
    tokens = {each.stream_id for each in rooms}
    ahead = tokens - covered_tokens(txn, tokens, upto)
    earlier = memberships_at(txn, user, [e for e in rooms if e.stream_id in ahead], upto)
    return [earlier.get(each.room_no, each) for each in rooms]


class RoomOfUser(NamedTuple):
    """One room, as it is to a user.

    :ivar member: the user's membership; None if the user never had one
    :ivar has_branches: whether events of the room are beside its main line
    :ivar newest: what the user was in the room most recently; None if that was not asked
    """

    room: RoomRow
    member: UserRoom | None
    slots: ViewerSlots
    has_branches: bool
    newest: HistoryPart | None


_ROOM = f"""
    SELECT {", ".join(f"r.{each}" for each in RoomRow._fields)},
           EXISTS (SELECT FROM synrepl._room_events e WHERE e.room_no = r.room_no AND {IS_BESIDE}),
           $newest,
           y.slot, k.slot,
           coalesce(m.membership, CASE WHEN g.stream_id IS NOT NULL THEN 'leave' END), m.event_no,
           coalesce(m.stream_id, g.stream_id), m.event_no IS NOT NULL,
           coalesce(h.stream_id, 0), coalesce(h.topological, 0),
           coalesce(h.state_stream_id, 0), coalesce(h.purged_stream_id, 0),
           coalesce(f.event_no = m.event_no, false)
      FROM synrepl._rooms r
      LEFT JOIN synrepl._room_heads h USING (room_no)
      LEFT JOIN synrepl._room_keys y ON y.room_no = r.room_no
       AND y.type = 'm.room.history_visibility' AND y.state_key = ''
      LEFT JOIN synrepl._room_keys k ON k.room_no = r.room_no AND k.type = 'm.room.member'
       AND k.state_key = %(user)s
      LEFT JOIN synrepl._memberships m ON m.room_no = r.room_no AND m.user_id = %(user)s
      LEFT JOIN LATERAL (
           SELECT max(g.stream_id) AS stream_id FROM synrepl._membership_history g
            WHERE g.room_no = r.room_no AND g.user_id = %(user)s) AS g ON true
      LEFT JOIN synrepl._forgotten_rooms f ON f.room_no = r.room_no AND f.user_id = %(user)s
     WHERE r.room_id = %(room)s"""
_ROOMS_OF_USERS = {
    False: planned(_ROOM.replace("$newest", "NULL")),
    True: planned(_ROOM.replace("$newest", newest_versions_sql("k.slot", "y.slot"))),
}


def room_of_user(txn: Transaction, room_id: str, user: str, *, with_history: bool) -> RoomOfUser:
    """One room, and the current membership of a user in it.

    :param with_history: whether to read what the user was in it before, too
    :raises UnknownRoom: it is not in the store
    """
    found = None
    if "\0" not in room_id:  # no text in PostgreSQL has it
        found = txn.execute(
            _ROOMS_OF_USERS[with_history], {"room": room_id, "user": user}
        ).fetchone_or_none()
    if found is None:
        raise UnknownRoom(room_id=room_id.replace("\0", "\ufffd"))
    count = len(RoomRow._fields)
    room = room_row(found[:count])
    has_branches, versions, visibility_slot, slot, membership, *rest = found[count:]
    slots = ViewerSlots(
        NO_SLOT if slot is None else slot, NO_SLOT if visibility_slot is None else visibility_slot
    )
    newest = newest_part(room, slots, versions) if with_history else None
    if membership is None or slot is None:
        return RoomOfUser(room, None, slots, has_branches, newest)
    member = UserRoom(room.room_no, room.room_id, room.version, slot, membership, *rest)
    return RoomOfUser(room, member, slots, has_branches, newest)


def memberships_at(
    txn: Transaction, user: str, rooms: Sequence[UserRoom], vector: PositionVector
) -> dict[int, UserRoom]:
    """The same rooms of a user with the membership as of a vector, by number."""
    if not rooms:
        return {}

    def is_covered(stream_id: str) -> str:
        return covered_sql(vector, "at", stream_id)

    txn.execute(
        "SELECT w.room_no, x.membership, x.stream_id, x.event_no"
        " FROM unnest(%(rooms)s::int[], %(slots)s::int[]) AS w (room_no, slot)"
        f" LEFT JOIN LATERAL ({newest_membership_sql('w', '%(user)s', is_covered)}) AS x ON true",
        {
            "user": user,
            "rooms": array_text([each.room_no for each in rooms]),
            "slots": array_text([each.slot for each in rooms]),
            **covered_params(vector, "at"),
        },
    )
    found = {row[0]: row for row in txn.fetchall()}
    return {each.room_no: _as_of(each, found[each.room_no]) for each in rooms}


def joined_once(txn: Transaction, user: str, rooms: Sequence[UserRoom]) -> set[int]:
    """Those of some rooms, by number, that a user was in at some time."""
    if not rooms:
        return set()
    txn.execute(
        f"""
        SELECT w.room_no FROM unnest(%(rooms)s::int[], %(slots)s::int[]) AS w (room_no, slot)
         WHERE EXISTS (SELECT FROM synrepl._room_events e
                        WHERE e.room_no = w.room_no AND e.slot = w.slot AND e.stream_id IS NOT NULL
                          AND e.audience & {NEVER_BITS} = 0
                          AND {membership_set("e.audience")} = {JOIN})
            OR EXISTS (SELECT FROM synrepl._membership_history h
                        WHERE h.room_no = w.room_no AND h.user_id = %(user)s AND h.membership = 'join')""",
        {
            "user": user,
            "rooms": array_text([each.room_no for each in rooms]),
            "slots": array_text([each.slot for each in rooms]),
        },
    )
    return {int(room_no) for (room_no,) in txn.fetchall()}


def _as_of(room: UserRoom, row: Record) -> UserRoom:
    _, membership, stream_id, event_no = row
    return room._replace(
        membership=membership or "leave",
        member_no=event_no,
        stream_id=stream_id or 0,
        has_event=membership is not None,
    )


def most_recent(rooms: Iterable[UserRoom]) -> list[UserRoom]:
    """Rooms in the order of their newest events, the newest first."""
    return sorted(rooms, key=lambda each: (-each.newest, each.room_id))
