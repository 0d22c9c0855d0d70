"""Entries of the states of many rooms: current ones, and what changed of them along the stream.

What changed is known from the facts of ``events``: rows of kind ``state`` name a key and its new event. A row of kind
``state-all`` says that so much changed that the whole state has to be read again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction, planned
from synrepl.storage.rooms.states.state_groups import read_slot_states
from synrepl.storage.rooms.tables.numbers import keys_of
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.visibility.covered_sql import (
    covered_params,
    covered_sql,
    not_covered_sql,
)

#: Type of the events that set memberships.
MEMBER = "m.room.member"


class StateEntry(NamedTuple):
    """An entry of a state."""

    slot: int
    key: StateKey
    event_no: int


class StateChanges(NamedTuple):
    """What changed of a room's current state, in the order of the stream.

    :ivar changes: stream ordering, key, and the number of the new event; None if the entry was removed
    :ivar is_many: whether there is more than the changes name
    """

    changes: Sequence[tuple[int, StateKey, int | None]]
    is_many: bool


def current_entries(
    txn: Transaction,
    room_nos: Collection[int],
    members: Collection[tuple[int, str]] | None,
    *,
    only_members: bool = False,
) -> dict[int, list[StateEntry]]:
    """The current states of rooms.

    :param members: the memberships that are wanted, by room and user; None: all
    :param only_members: whether nothing else is wanted
    """
    where, params = "", dict[str, object](rooms=array_text(room_nos))
    if members is None and only_members:
        where = f" AND k.type = '{MEMBER}'"
    elif members is not None:
        is_wanted = f"k.type = '{MEMBER}' AND (k.room_no, k.state_key) IN ({_PAIRS})"
        where = (
            f" AND {is_wanted}" if only_members else f" AND (k.type <> '{MEMBER}' OR {is_wanted})"
        )
        params |= _pairs(members)
    txn.execute(
        planned(
            "SELECT c.room_no, c.slot, k.type, k.state_key, c.event_no FROM synrepl._current_state c"
            " JOIN synrepl._room_keys k USING (room_no, slot)"
            f" WHERE c.room_no = ANY (%(rooms)s::int[]){where}"
        ),
        params,
    )
    found: dict[int, list[StateEntry]] = {room_no: [] for room_no in room_nos}
    for room_no, slot, kind, state_key, event_no in txn.fetchall():
        found[room_no].append(StateEntry(slot, (kind, state_key), event_no))
    return found


_PAIRS = (
    "SELECT room_no, user_id FROM unnest(%(of)s::int[], %(users)s::text[]) AS p (room_no, user_id)"
)


def _pairs(members: Collection[tuple[int, str]]) -> dict[str, object]:
    return {
        "of": array_text([room_no for room_no, _ in members]),
        "users": array_text([user for _, user in members]),
    }


def state_changes(
    txn: Transaction,
    rooms: Sequence[tuple[int, str]],
    since: PositionVector,
    upto: PositionVector,
) -> dict[int, StateChanges]:
    """What changed of the current states of rooms between two vectors.

    :param rooms: numbers and IDs
    """
    if not rooms:
        return {}
    numbers, ids = (list(each) for each in zip(*rooms, strict=True))
    txn.execute(
        f"SELECT w.room_no, {_CHANGE} FROM unnest(%(rooms)s::int[], %(ids)s::text[]) AS w (room_no, room_id)"
        " JOIN synrepl._room_events e ON e.room_no = w.room_no AND e.stream_id > 0"
        f" AND {not_covered_sql(since, 'since')} AND {covered_sql(upto, 'upto')} {_OF_EVENT} ORDER BY f.stream_id, f.row_no",
        {
            "rooms": array_text(numbers),
            "ids": array_text(ids),
            **covered_params(since, "since"),
            **covered_params(upto, "upto"),
        },
    )
    return _collected(txn.fetchall(), numbers)


def state_changes_after(
    txn: Transaction, rooms: Sequence[tuple[int, str, int]]
) -> dict[int, StateChanges]:
    """The same after a stream ordering of each room."""
    found: dict[int, StateChanges] = {}
    if not rooms:
        return found
    numbers, ids, after = (list(each) for each in zip(*rooms, strict=True))
    txn.execute(
        f"SELECT w.room_no, {_CHANGE} FROM unnest(%s::int[], %s::text[], %s::bigint[])"
        " AS w (room_no, room_id, after)"
        " JOIN synrepl._room_events e ON e.room_no = w.room_no AND e.stream_id > w.after AND e.stream_id > 0"
        f" {_OF_EVENT} ORDER BY f.stream_id, f.row_no",
        (array_text(numbers), array_text(ids), array_text(after)),
    )
    return _collected(txn.fetchall(), numbers)


_CHANGE = "f.stream_id, f.kind, f.type, f.state_key, n.event_no"
_OF_EVENT = (
    "JOIN synrepl.events f ON f.stream_id = e.stream_id AND f.kind IN ('state', 'state-all')"
    " AND f.room_id = w.room_id LEFT JOIN synrepl._room_events n ON n.event_id = f.event_id"
)


def _collected(
    rows: Iterable[Sequence[object]], room_nos: Iterable[int]
) -> dict[int, StateChanges]:
    changes: dict[int, list[tuple[int, StateKey, int | None]]] = defaultdict(list)
    many: set[int] = set()
    for room_no, stream_id, kind, event_type, state_key, event_no in rows:
        assert isinstance(room_no, int)
        assert isinstance(stream_id, int)
        if kind == "state-all":
            many.add(room_no)
            continue
        key = str(event_type), str(state_key)
        changes[room_no].append((stream_id, key, event_no if isinstance(event_no, int) else None))
    return {each: StateChanges(changes[each], each in many) for each in room_nos}


def covered_tokens(
    txn: Transaction, stream_ids: Collection[int], vector: PositionVector
) -> set[int]:
    """Those of some stream orderings that a vector covers."""
    below = {each for each in stream_ids if each <= vector.linear}
    above = [each for each in stream_ids if each > vector.linear]
    if not above or not vector.writers:
        return below
    txn.execute(
        f"SELECT e.stream_id FROM unnest(%(ids)s::bigint[]) AS e (stream_id) WHERE {covered_sql(vector, 'at')}",
        {"ids": array_text(above), **covered_params(vector, "at")},
    )
    return below | {int(each) for (each,) in txn.fetchall()}


class Boundary(NamedTuple):
    """A place in the stream of a room, named by the first event after it.

    :ivar stream_id: of that event
    :ivar group_before: the state before it
    """

    stream_id: int
    group_before: int


def ends(txn: Transaction, room_nos: Collection[int], upto: PositionVector) -> dict[int, Boundary]:
    """Where the rooms end that a vector covers; rooms that it covers to their end are left out."""
    txn.execute(
        "SELECT w.room_no, e.stream_id, e.group_before FROM unnest(%(rooms)s::int[]) AS w (room_no)"
        " CROSS JOIN LATERAL (SELECT e.stream_id, e.group_before FROM synrepl._room_events e"
        f"  WHERE e.room_no = w.room_no AND e.stream_id > 0 AND {not_covered_sql(upto, 'upto')}"
        "  ORDER BY e.stream_id LIMIT 1) AS e",
        {"rooms": array_text(room_nos), **covered_params(upto, "upto")},
    )
    return {row[0]: Boundary(row[1], row[2]) for row in txn.fetchall()}


def entries_before(
    txn: Transaction, wanted: Sequence[tuple[int, int, StateKey]]
) -> dict[tuple[int, StateKey], int | None]:
    """Entries of groups' states, by room and key; None where there is none.

    :param wanted: number of the room, of the group, and the key
    """
    if not wanted:
        return {}
    txn.execute(
        "SELECT w.room_no, w.type, w.state_key, synrepl.state_entry(w.room_no, w.group_no, k.slot)"
        " FROM unnest(%s::int[], %s::bigint[], %s::text[], %s::text[]) AS w (room_no, group_no, type, state_key)"
        " LEFT JOIN synrepl._room_keys k ON k.room_no = w.room_no AND k.type = w.type"
        " AND k.state_key = w.state_key",
        (
            array_text([room_no for room_no, _, _ in wanted]),
            array_text([group for _, group, _ in wanted]),
            array_text([key[0] for _, _, key in wanted]),
            array_text([key[1] for _, _, key in wanted]),
        ),
    )
    return {(room_no, (kind, key)): event_no for room_no, kind, key, event_no in txn.fetchall()}


def state_entries_after(txn: Transaction, room_no: int, event_no: int) -> dict[StateKey, int]:
    """The whole state after an event, which is no outlier: numbers of events by key.

    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: it cannot be read
    """
    group = int(txn.execute(_GROUP_AFTER, (event_no,)).fetchone()[0])
    entries = read_slot_states(txn, room_no, [group])[group]
    keys = keys_of(txn, room_no, list(entries))
    return {keys[slot]: number for slot, number in entries.items()}


_GROUP_AFTER = planned("SELECT group_after FROM synrepl._room_events WHERE event_no = %s")


def senders_of(txn: Transaction, event_nos: Collection[int]) -> dict[int | None, str]:
    """The senders of events, by number."""
    txn.execute(
        "SELECT event_no, sender FROM synrepl._room_events WHERE event_no = ANY (%s::bigint[])",
        (list(event_nos),),
    )
    return {event_no: str(sender) for event_no, sender in txn.fetchall()}
