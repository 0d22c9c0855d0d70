"""The state before an event as another server lists it: which of its events are missing, and the state group of it.

A list and the events that were fetched for it are rows, so a process that is killed, or an answer that breaks off,
costs only what had not arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from synrepl.rooms import Event
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.group_writer import GroupWriter
from synrepl.storage.rooms.states.whole_group import make_whole_group
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.pending_rows import RoomTable, array_text, copy_rows
from synrepl.storage.rooms.visibility.audience import JOIN
from synrepl.storage.rooms.visibility.audience_sql import membership_set

_LISTED_TABLE = RoomTable("synrepl._listed_events", "room_no, event_id, is_state")
_FETCHED_TABLE = RoomTable(
    "synrepl._fetched_events", "room_no, depth, event_id, type, state_key, membership, raw"
)

_IS_STORED = "EXISTS (SELECT FROM synrepl._room_events e WHERE e.event_id = l.event_id)"
_IS_FETCHED = (
    "EXISTS (SELECT FROM synrepl._fetched_events f"
    " WHERE f.room_no = l.room_no AND f.event_id = l.event_id)"
)

#: Events of a list that are neither stored nor fetched.
_MISSING = f"FROM synrepl._listed_events l WHERE l.room_no = %(room)s AND NOT {_IS_STORED} AND NOT {_IS_FETCHED}"

# The same among a few: looked up one by one. The tables are new and large, and without statistics they would be read as a
# whole for each few.
_MISSING_AMONG = """
    SELECT a.event_id FROM unnest(%(among)s::text[]) AS a (event_id)
     WHERE EXISTS (SELECT FROM synrepl._listed_events l
                    WHERE l.room_no = %(room)s AND l.event_id = a.event_id OFFSET 0)
       AND NOT EXISTS (SELECT FROM synrepl._room_events e WHERE e.event_id = a.event_id OFFSET 0)
       AND NOT EXISTS (SELECT FROM synrepl._fetched_events f
                        WHERE f.room_no = %(room)s AND f.event_id = a.event_id OFFSET 0)
     ORDER BY 1 LIMIT %(limit)s"""

#: Rejected events are no part of a state, unless they are judged again.
_IS_FINALLY_REJECTED = (
    f"(e.flags & {int(EventFlags.REJECTED)} <> 0"
    f" AND e.flags & {int(EventFlags.PARTIAL | EventFlags.UNCONFIRMED)} = 0)"
)

# The listed state, of stored and of fetched events.
_STATE = f"""
    SELECT l.event_id, coalesce(e.room_no, l.room_no) = l.room_no AS is_here,
           coalesce(k.type, f.type) AS type, coalesce(k.state_key, f.state_key) AS state_key,
           coalesce({membership_set("e.audience")} = {JOIN}, f.membership = 'join', false) AS is_join
      FROM synrepl._listed_events l
      LEFT JOIN synrepl._room_events e ON e.event_id = l.event_id
      LEFT JOIN synrepl._room_keys k ON k.room_no = e.room_no AND k.slot = e.slot
      LEFT JOIN synrepl._fetched_events f ON f.room_no = l.room_no AND f.event_id = l.event_id
     WHERE l.room_no = %(room)s AND l.is_state"""

_ENTRIES = f"""
    SELECT e.slot, e.event_no, k.type, k.state_key, e.event_id FROM synrepl._listed_events l
      JOIN synrepl._room_events e ON e.event_id = l.event_id AND e.room_no = l.room_no
      JOIN synrepl._room_keys k ON k.room_no = e.room_no AND k.slot = e.slot
     WHERE l.room_no = %(room)s AND l.is_state AND NOT {_IS_FINALLY_REJECTED}"""


def list_events(
    txn: Transaction, room_no: int, state: Iterable[str], auth_chain: Iterable[str]
) -> int:
    """Replace the list of a room; returns the number of listed events.

    What was fetched for the list before stays, if it is on this one, too.
    """
    forget_list(txn, room_no)
    of_state = dict.fromkeys(state, True)
    listed = dict.fromkeys(auth_chain, False) | of_state
    copy_rows(txn, _LISTED_TABLE, ((room_no, each, what) for each, what in listed.items()))
    txn.execute(
        "DELETE FROM synrepl._fetched_events f WHERE f.room_no = %(room)s AND NOT EXISTS ("
        " SELECT FROM synrepl._listed_events l WHERE l.room_no = f.room_no AND l.event_id = f.event_id)",
        {"room": room_no},
    )
    return len(listed)


def add_to_list(txn: Transaction, room_no: int, auth_chain: Iterable[str]) -> None:
    """Add events to the auth chain on a list."""
    txn.execute(
        "INSERT INTO synrepl._listed_events (room_no, event_id, is_state)"
        " SELECT %s, unnest(%s::text[]), false ON CONFLICT DO NOTHING",
        (room_no, array_text(sorted(set(auth_chain)))),
    )


def forget_list(txn: Transaction, room_no: int, *, with_fetched: bool = False) -> None:
    """Remove the list of a room.

    :param with_fetched: also the events that were fetched for it
    """
    txn.execute("DELETE FROM synrepl._listed_events WHERE room_no = %s", (room_no,))
    if with_fetched:
        txn.execute("DELETE FROM synrepl._fetched_events WHERE room_no = %s", (room_no,))


def count_missing(txn: Transaction, room_no: int) -> int:
    """The number of listed events that are neither stored nor fetched."""
    txn.execute(f"SELECT count(*) {_MISSING}", {"room": room_no})
    return int(txn.fetchone()[0])


def count_listed(txn: Transaction, room_no: int) -> int:
    """The number of listed events; 0 also after a crash of the database server."""
    txn.execute("SELECT count(*) FROM synrepl._listed_events WHERE room_no = %s", (room_no,))
    return int(txn.fetchone()[0])


def missing_events_of_list(
    txn: Transaction, room_no: int, limit: int, among: Collection[str] | None = None
) -> list[str]:
    """Listed events that are neither stored nor fetched.

    :param among: only some of these
    """
    params: dict[str, object] = {"room": room_no, "limit": limit}
    statement = f"SELECT l.event_id {_MISSING} ORDER BY 1 LIMIT %(limit)s"
    if among is not None:
        statement, params["among"] = _MISSING_AMONG, array_text(among)
    txn.execute(statement, params)
    return [str(event_id) for (event_id,) in txn.fetchall()]


def keep_fetched(txn: Transaction, room_no: int, events: Sequence[Event]) -> int:
    """Keep events that were fetched, as far as they are missing; returns their number."""
    once = {each.event_id: each for each in events}
    missing = missing_events_of_list(txn, room_no, len(once), once.keys())
    copy_rows(
        txn, _FETCHED_TABLE, ((room_no, *_fetched_row(once[event_id])) for event_id in missing)
    )
    return len(missing)


def _fetched_row(event: Event) -> tuple[object, ...]:
    membership = event.membership if event.type == "m.room.member" else None
    text = membership if isinstance(membership, str) and "\0" not in membership else None
    return event.depth, event.event_id, event.type, event.state_key, text, event.raw


def fetched_events(
    txn: Transaction, room_no: int, after: tuple[int, str], limit: int
) -> list[bytes]:
    """The JSON of events that were fetched, in the order of depth, in which mostly an event comes after those that it cites."""
    txn.execute(
        "SELECT raw FROM synrepl._fetched_events"
        " WHERE room_no = %s AND (depth, event_id) > (%s, %s) ORDER BY depth, event_id LIMIT %s",
        (room_no, *after, limit),
    )
    return [bytes(raw) for (raw,) in txn.fetchall()]


def forget_fetched(txn: Transaction, room_no: int, event_ids: Collection[str]) -> None:
    """Remove events that are stored now."""
    txn.execute(
        "DELETE FROM synrepl._fetched_events WHERE room_no = %s AND event_id = ANY (%s::text[])",
        (room_no, array_text(event_ids)),
    )


def wrong_with_list(txn: Transaction, room_no: int, create_id: str | None) -> str | None:
    """What is wrong with the state on a list, once all of its events are here; None: nothing.

    :param create_id: the ``m.room.create`` of the room, if it is known
    """
    # The statement reads very many rows, so it answers all questions at once.
    txn.execute(
        "SELECT coalesce(sum(events), 0), sum(elsewhere), sum(events) FILTER (WHERE state_key IS NULL),"
        " bool_or(is_joined), min(event_id) FILTER (WHERE type = 'm.room.create' AND state_key = ''),"
        " min(json_build_array(type, state_key)::text) FILTER (WHERE events > 1)"
        " FROM (SELECT type, state_key, count(*) AS events, count(*) FILTER (WHERE NOT is_here) AS elsewhere,"
        "  bool_or(is_join) AND type = 'm.room.member' AS is_joined, min(event_id) AS event_id"
        f"  FROM ({_STATE}) AS s GROUP BY type, state_key) AS s",
        {"room": room_no},
    )
    count, elsewhere, messages, is_joined, create, twice = txn.fetchone()
    if not count:
        return "its state has no events"
    if elsewhere:
        return f"{elsewhere} events of its state are of another room"
    if messages:
        return f"{messages} events of its state are no state events"
    if create is None:
        return "its state has no m.room.create"
    if create_id is not None and create != create_id:
        return "its state has the m.room.create of another room"
    if not is_joined:
        return "nobody is in the room by its state"
    return None if twice is None else f"its state has two events for {twice:.200}"


def group_of_list(
    txn: Transaction,
    room: RoomRow,
    take_group_no: Callable[[], int],
    writer: GroupWriter | None = None,
    near: int | None = None,
) -> int:
    """The state group of a list, all of whose events are stored. The caller holds the room's lock, and raises its revision.

    :param take_group_no: draws the number of a new group
    :param writer: makes the group as a change of another one, ``near``; None: it is stored in full
    """
    params = {"room": room.room_no}
    if writer is None or near is None:
        group = take_group_no()
        make_whole_group(txn, room, group, _ENTRIES, params)
        return group
    txn.execute(f"SELECT slot, event_no FROM ({_ENTRIES}) AS e", params)
    new: dict[int, int] = dict(txn.fetchall())
    old = writer.state(near)
    change: dict[int, int | None] = {
        slot: number for slot, number in new.items() if old.get(slot) != number
    }
    change |= dict.fromkeys(old.keys() - new.keys())
    return writer.make(near, change, {slot: old.get(slot) for slot in change})
