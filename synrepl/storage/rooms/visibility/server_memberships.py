"""The most permissive membership of a server's users at some states.

A server may have tens of thousands of users in a room, so they are not looked up one by one at each state.
Of the states of a page, most users have the same membership in all: those are looked up once. Only those whose
membership changes among these states are looked up at each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_line import (
    LinePlace,
    StoredLine,
    ancestry,
    look_up,
    read_lines,
    read_places,
)
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.visibility.audience import INVITE, JOIN, LEAVE, SETS_SHIFT

#: Rank of the memberships that show more than none.
_RANKS = {JOIN: 2, INVITE: 1}


def server_memberships(
    txn: Transaction, room: RoomRow, server: str, groups: Collection[int]
) -> dict[int, int]:
    """For each state group, the number of the most permissive membership of a server's users."""
    best = dict.fromkeys(groups, LEAVE)
    slots = _slots_of_server(txn, room, server) if groups else []
    if not slots or room.main_line is None:
        return best
    places = read_places(txn, room, groups)
    lines = read_lines(txn, {place.line_no for place in places.values()})
    varying = _varying(txn, places.values(), lines, slots)
    steady = [slot for slot in slots if slot not in varying]
    # Any of the states will do for those that are equal in all.
    some_place = next(iter(places.values()))
    wanted = [(some_place, slot) for slot in steady]
    wanted += [(place, slot) for place in places.values() for slot in varying]
    entries = look_up(txn, wanted, lines)
    memberships = _memberships(txn, {entry for entry in entries if entry is not None})
    found = [LEAVE if entry is None else memberships.get(entry, LEAVE) for entry in entries]
    always = _best(found[: len(steady)])
    for number, group in enumerate(places):
        first = len(steady) + number * len(varying)
        best[group] = _best([always, *found[first : first + len(varying)]])
    return best


def _slots_of_server(txn: Transaction, room: RoomRow, server: str) -> list[int]:
    txn.execute(
        "SELECT slot FROM synrepl._room_keys"
        " WHERE room_no = %s AND type = 'm.room.member'"
        " AND CASE WHEN strpos(state_key, ':') = 0 THEN ''"
        " ELSE substr(state_key, strpos(state_key, ':') + 1) END = %s",
        (room.room_no, server),
    )
    return [slot for (slot,) in txn.fetchall()]


def _varying(
    txn: Transaction,
    places: Iterable[LinePlace],
    lines: Mapping[int, StoredLine],
    slots: Sequence[int],
) -> list[int]:
    """Those of the slots that may have different entries at some places."""
    own = set(slots)
    varying: set[int] = set()
    positions: dict[int, list[int]] = {}
    count = 0
    for place in places:
        count += 1
        varying.update(own & place.overlay.keys())
        for line_no, pos in ancestry(place, lines):
            positions.setdefault(line_no, []).append(pos)
    # A line on which not all places are counts as a whole: the others do not have its versions.
    low = {line_no: min(upto) if len(upto) == count else -1 for line_no, upto in positions.items()}
    txn.execute(
        "SELECT DISTINCT s.slot FROM unnest(%s::int[]) AS s (slot)"
        " CROSS JOIN unnest(%s::int[], %s::bigint[], %s::bigint[]) AS l (line_no, low, high)"
        " WHERE EXISTS (SELECT FROM synrepl._state_line v WHERE v.line_no = l.line_no"
        " AND v.slot = s.slot AND v.pos > l.low AND v.pos <= l.high)",
        (
            slots,
            list(positions),
            [low[line_no] for line_no in positions],
            [max(upto) for upto in positions.values()],
        ),
    )
    varying.update(slot for (slot,) in txn.fetchall())
    return sorted(varying)


def _memberships(txn: Transaction, entries: Collection[int]) -> dict[int, int]:
    """The memberships that events set, by number."""
    txn.execute(
        f"SELECT event_no, (audience >> {SETS_SHIFT}) & 7 FROM synrepl._room_events"
        " WHERE event_no = ANY (%s::bigint[]) AND audience IS NOT NULL",
        (list(entries),),
    )
    return dict(txn.fetchall())


def _best(memberships: Iterable[int]) -> int:
    return max(memberships, key=lambda each: _RANKS.get(each, 0), default=LEAVE)
