"""States at events, as readers get them: whole, by key or by type, and what two of them differ in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.event_access import (
    EventInOtherRoom,
    check_named,
    require_event,
    require_full,
)
from synrepl.storage.rooms.states.named_entries import NamedEntries
from synrepl.storage.rooms.states.state_look_ups import entries_at_events, entries_at_groups
from synrepl.storage.rooms.states.whole_states import whole_state
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.heads import read_heads
from synrepl.storage.rooms.tables.numbers import (
    ROOM_COLUMNS,
    NumberWithoutRow,
    RoomRow,
    require_room,
    room_row,
)
from synrepl.storage.rooms.tables.pending_rows import array_text

#: From this number of slots on, a state is read whole and filtered.
_MANY_SLOTS = 1_000

#: Flags of events at which the state may not be given.
_UNUSUAL = int(EventFlags.OUTLIER | EventFlags.REJECTED | EventFlags.PARTIAL)

#: Maximum number of entries that may be looked up in one request.
MAX_LOOK_UPS = 20_000


class StateAtEvent(NamedTuple):
    """Which state is meant.

    :ivar before: whether it is the state before the event instead of the one after it
    :ivar rejected: whether the event may be a rejected one
    :ivar partial: whether the state may be partial
    """

    event_id: str
    before: bool = False
    rejected: bool = False
    partial: bool = False


class StateChange(NamedTuple):
    """What differs between two states; an entry is None where a state has none.

    :ivar old: the entries of the first state
    :ivar new: the entries of the second, with the same keys
    """

    old: Mapping[StateKey, str | None]
    new: Mapping[StateKey, str | None]


def locate_states(
    txn: Transaction, wanted: Sequence[StateAtEvent], room_id: str | None = None
) -> tuple[RoomRow, list[int]]:
    """The room, and the numbers of the groups of some states, in one statement.

    :param wanted: at least one
    :param room_id: the room that they must be in
    :raises EventNotStored: :raises EventIsOutlier: :raises EventRejected: :raises PartialEvent:
    :raises EventInOtherRoom: they are not all in one room
    """
    txn.execute(
        f"SELECT e.event_id, e.flags, e.group_before, e.group_after, {ROOM_COLUMNS}"
        " FROM synrepl._room_events e"
        " JOIN synrepl._rooms r USING (room_no) WHERE e.event_id = ANY (%s::text[])",
        (array_text({each.event_id for each in wanted if "\0" not in each.event_id}),),
    )
    rows = {row[0]: row for row in txn.fetchall()}
    room: RoomRow | None = None
    groups: list[int] = []
    for each in wanted:
        row = rows.get(each.event_id)
        if row is None or row[1] & _UNUSUAL:
            require_full(
                require_event(txn, each.event_id), rejected=each.rejected, partial=each.partial
            )
        assert row is not None
        if room is None:
            room = room_row(row[4:])
            room_id = room_id or room.room_id
        if row[5] != room_id:
            raise EventInOtherRoom(event_id=each.event_id, room_id=row[5], expected=room_id)
        group = row[2] if each.before else row[3]
        if group is None:
            what = f"the state group of event {each.event_id}, number"
            raise NumberWithoutRow(what=what, number="none", room_no=room.room_no)
        groups.append(group)
    assert room is not None
    return room, groups


def current_group(txn: Transaction, room_id: str) -> tuple[RoomRow, int]:
    """A room, and the number of the group of its current state.

    :raises UnknownRoom: it is not here
    """
    room = require_room(txn, room_id)
    heads = read_heads(txn, room.room_no)
    if heads is None:
        raise NumberWithoutRow(what="the heads of room", number=room.room_no, room_no=room.room_no)
    return room, heads.current_group


def read_state(
    txn: Transaction,
    names: NamedEntries,
    room: RoomRow,
    group: int,
    keys: Collection[StateKey] | None = None,
    types: Collection[str] | None = None,
) -> dict[StateKey, str]:
    """A state, or the part of it with some keys and types.

    :param names: what is cached about the room's events
    :param keys: if given, only entries with these keys, and those of ``types``
    :param types: if given, only entries of these types, and those of ``keys``
    :raises CorruptState: :raises NumberWithoutRow: it is not what was stored
    """
    if keys is None and types is None:
        return whole_state(txn, names, room, group)
    check_named("keys", keys or ())
    check_named("types", types or ())
    slots = _slots(txn, room, keys or (), types or ())
    if len(slots) <= _MANY_SLOTS:
        return entries_at_groups(txn, room, [group], slots)[0]
    state = whole_state(txn, names, room, group)
    return {key: each for key, each in state.items() if key in slots}


def look_up_entries(
    txn: Transaction, event_ids: Sequence[str], keys: Collection[StateKey], *, before: bool = False
) -> list[dict[StateKey, str]]:
    """Entries of the states after (or before) events of one room. Keys that a state has no entry for are left out.

    :param event_ids: at least one
    :raises TooManyNamed: too many events or keys
    :raises EventNotStored: :raises EventIsOutlier: :raises EventRejected: :raises PartialEvent:
    :raises EventInOtherRoom: they are not all in one room
    :raises NumberWithoutRow: :raises CorruptState: the state line is damaged
    """
    check_named("events", event_ids)
    check_named("keys", keys)
    check_named("entries", range(len(event_ids) * len(keys)), MAX_LOOK_UPS)
    found = entries_at_events(txn, event_ids, list(keys), before=before, unusual=_UNUSUAL)
    if not found.are_usual:
        # This names the event that is refused.
        room, groups = locate_states(txn, [StateAtEvent(each, before) for each in event_ids])
        return entries_at_groups(txn, room, groups, _slots(txn, room, keys, ()))
    return found.states


def difference_of_groups(
    txn: Transaction, names: NamedEntries, room: RoomRow, older: int, newer: int
) -> StateChange:
    """What differs between two states of a room.

    Both are read whole, because only a whole state can be checked against its digest.

    :raises CorruptState: :raises NumberWithoutRow: a state is not what was stored
    """
    if older == newer:
        return StateChange({}, {})
    before = whole_state(txn, names, room, older)
    after = whole_state(txn, names, room, newer)
    different = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return StateChange(
        {key: before.get(key) for key in different}, {key: after.get(key) for key in different}
    )


def _slots(
    txn: Transaction, room: RoomRow, keys: Collection[StateKey], types: Collection[str]
) -> dict[StateKey, int]:
    """The slots of some keys, and of all keys of some types."""
    named = [key for key in keys if "\0" not in key[0] and "\0" not in key[1]]
    txn.execute(
        "SELECT k.type, k.state_key, k.slot FROM unnest(%s::text[], %s::text[]) AS w (type, state_key)"
        " JOIN synrepl._room_keys k ON k.room_no = %s AND k.type = w.type AND k.state_key = w.state_key"
        " UNION SELECT type, state_key, slot FROM synrepl._room_keys"
        " WHERE room_no = %s AND type = ANY (%s::text[])",
        (
            array_text([key[0] for key in named]),
            array_text([key[1] for key in named]),
            room.room_no,
            room.room_no,
            array_text([each for each in types if "\0" not in each]),
        ),
    )
    return {(kind, state_key): int(slot) for kind, state_key, slot in txn.fetchall()}
