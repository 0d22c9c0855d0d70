"""Gaps in rooms: events that others wait for, as functions of a transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.rooms import BadEvent, Event, RoomVersion, auth_dependencies, parse_event, room_version
from synrepl.storage.database import Transaction
from synrepl.storage.federation.failed_fetches import not_due
from synrepl.storage.federation.inbound_rooms import some_servers
from synrepl.storage.federation.staged_events import staged_ids
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.heads import forward_extremities
from synrepl.storage.rooms.tables.numbers import find_room
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.tables.waiting import waiting_ids

#: Waiting events that are looked at in one go, those that have waited longest.
MAX_WAITING_READ = 100

#: Forward extremities that are named to another server; it has no use for more.
MAX_EARLIEST = 20

#: Servers of a room from which those to ask are chosen.
MAX_SERVERS_READ = 100

_OUTLIER = int(EventFlags.OUTLIER)


class WaitingForOthers(NamedTuple):
    """An event that waits for events that are not here at all.

    :ivar prev_events: those of its prev events that are missing
    :ivar auth_events: those of its auth events that are missing
    """

    event: Event
    live: bool
    backfilled: bool
    prev_events: Sequence[str]
    auth_events: Sequence[str]


class RoomGap(NamedTuple):
    """What a room lacks.

    :ivar waiting: events that wait for missing ones, those that came first first; what is backed off is left out
    :ivar extremities: some forward extremities
    :ivar min_depth: no event of the room that is here is less deep
    :ivar servers: some servers in the room
    """

    room_no: int
    room_id: str
    version: RoomVersion
    waiting: Sequence[WaitingForOthers]
    extremities: Sequence[str]
    min_depth: int
    servers: Sequence[str]

    @property
    def missing(self) -> set[str]:
        """All missing events."""
        return {e for each in self.waiting for e in (*each.prev_events, *each.auth_events)}


def rooms_with_gaps(txn: Transaction) -> list[str]:
    """The IDs of rooms in which events wait for others. The cost goes with the number of these rooms."""
    txn.execute(
        "WITH RECURSIVE found (room_no) AS ("
        " SELECT min(room_no) FROM synrepl._waiting_events"
        " UNION ALL SELECT (SELECT min(w.room_no) FROM synrepl._waiting_events w"
        "  WHERE w.room_no > found.room_no) FROM found WHERE found.room_no IS NOT NULL)"
        " SELECT r.room_id FROM found JOIN synrepl._rooms r USING (room_no)"
    )
    return [str(room_id) for (room_id,) in txn.fetchall()]


def read_gap(txn: Transaction, room_id: str) -> RoomGap | None:
    """What a room lacks now; None if nothing, or nothing that is to be asked for yet."""
    room = find_room(txn, room_id)
    if room is None:
        return None
    version = room_version(room.version)
    txn.execute(
        "SELECT w.live, w.backfilled, w.raw FROM synrepl._waiting_events w WHERE w.room_no = %s"
        " AND NOT EXISTS (SELECT FROM synrepl._failed_fetches f WHERE f.room_no = w.room_no"
        "  AND f.next_try > now() AND f.event_id = ANY (w.missing))"
        " ORDER BY w.waiting_no LIMIT %s",
        (room.room_no, MAX_WAITING_READ),
    )
    stored: list[tuple[Event, bool, bool]] = []
    for live, backfilled, raw in txn.fetchall():
        try:
            stored.append((parse_event(bytes(raw), version), live, backfilled))
        except BadEvent:
            continue
    waiting = _waiting_for_others(txn, room.room_no, stored)
    if not waiting:
        return None
    ends = sorted(forward_extremities(txn, room.room_no).values())
    txn.execute(
        "SELECT coalesce(min(e.depth), 0) FROM (SELECT depth FROM synrepl._room_events"
        "  WHERE room_no = %s AND stream_id IS NOT NULL ORDER BY topological, stream_id LIMIT 1) e",
        (room.room_no,),
    )
    min_depth = int(txn.fetchone()[0])
    servers = some_servers(txn, room.room_no, MAX_SERVERS_READ)
    return RoomGap(
        room.room_no,
        room_id,
        version,
        waiting,
        ends[:MAX_EARLIEST],
        max(0, min_depth),
        servers,
    )


def _waiting_for_others(
    txn: Transaction, room_no: int, stored: Sequence[tuple[Event, bool, bool]]
) -> list[WaitingForOthers]:
    needed = {
        each
        for event, _, _ in stored
        for each in (*event.prev_event_ids, *auth_dependencies(event))
        if "\0" not in each
    }
    with_state, known = _known(txn, needed)
    waiting = waiting_ids(txn, room_no, needed - with_state)
    waiting |= staged_ids(txn, room_no, needed - with_state)
    backed_off = not_due(txn, room_no, needed - with_state)
    found: list[WaitingForOthers] = []
    for event, live, backfilled in stored:
        prevs = [e for e in event.prev_event_ids if e not in with_state and e not in waiting]
        auths = [e for e in auth_dependencies(event) if e not in known and e not in waiting]
        if (prevs or auths) and backed_off.isdisjoint([*prevs, *auths]):
            found.append(WaitingForOthers(event, live, backfilled, prevs, auths))
    return found


def _known(txn: Transaction, event_ids: Collection[str]) -> tuple[set[str], set[str]]:
    """Those of some events that are here with their state, and those that are here at all."""
    txn.execute(
        f"SELECT event_id, flags & {_OUTLIER} = 0 FROM synrepl._room_events"
        " WHERE event_id = ANY (%s::text[])",
        (array_text(event_ids),),
    )
    rows = txn.fetchall()
    return {event_id for event_id, full in rows if full}, {event_id for event_id, _ in rows}


def events_with_state(txn: Transaction, event_ids: Collection[str]) -> set[str]:
    """Those of some events that are here with their state."""
    return _known(txn, [each for each in event_ids if "\0" not in each])[0]


def unknown_events(txn: Transaction, event_ids: Collection[str]) -> list[str]:
    """Those of some events that are not here, not even as outliers; in their order."""
    txn.execute(
        "SELECT w.event_id FROM unnest(%s::text[]) WITH ORDINALITY AS w (event_id, place)"
        " WHERE NOT EXISTS (SELECT FROM synrepl._room_events e WHERE e.event_id = w.event_id)"
        " ORDER BY w.place",
        (array_text([each for each in event_ids if "\0" not in each]),),
    )
    return [str(event_id) for (event_id,) in txn.fetchall()]


class StateEventKey(NamedTuple):
    """A stored state event, with the key that it sets.

    :ivar is_rejected: it is part of no state
    """

    event_id: str
    type: str
    state_key: str
    is_rejected: bool


def state_event_keys(
    txn: Transaction, room_no: int, event_ids: Collection[str]
) -> list[StateEventKey]:
    """The keys of stored state events of a room; others are left out."""
    rejected = int(EventFlags.REJECTED)
    txn.execute(
        f"SELECT e.event_id, k.type, k.state_key, e.flags & {rejected} <> 0"
        " FROM synrepl._room_events e JOIN synrepl._room_keys k USING (room_no, slot)"
        " WHERE e.event_id = ANY (%s::text[]) AND e.room_no = %s",
        (array_text([each for each in event_ids if "\0" not in each]), room_no),
    )
    return [StateEventKey(*row) for row in txn.fetchall()]
