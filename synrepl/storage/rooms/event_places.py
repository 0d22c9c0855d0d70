"""Which events follow the main line of their room's states, and where its positions are in the orderings.

An event is *on the line* when the state after it is a group of the main line, and no earlier one than that of
the events before it. The others are *beside* it: events of other branches, history, and what came
after the line had moved on.

On the line, the stream ordering and the state groups ascend together, so a user's membership from one
position of the line to another is a range of the stream ordering, and within bounds one of the topological
ordering. The first event of each group marks where its position is:

- every later event on the line has at least its topological ordering (else it counts as beside);
- every earlier one has at most its ``reach``, which is stored where it is above its own ordering.

Both are derived: they are found again from the events and the lines.
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.audience import BESIDE_BIT, FIRST_BIT
from synrepl.storage.rooms.numbers import RoomRow

#: Events whose places are found together.
_PAGE_EVENTS = 5_000


class EventPlace(NamedTuple):
    """The place of an event.

    :ivar bits: to be set in its audience
    :ivar reach: see the migration
    """

    bits: int
    reach: int | None


class EventPlaces:
    """Gives each event of a room its place, in the stream ordering.

    :param group: the group of the newest event on the line
    :param floor: the topological ordering of the first event of that group
    :param highest: the highest topological ordering on the line, or above it
    """

    __slots__ = ("_floor", "_group", "_highest")

    def __init__(self, group: int = 0, floor: int = 0, highest: int = 0) -> None:
        self._group, self._floor, self._highest = group, floor, highest

    def place(self, group_after: int, is_on_main_line: bool, topological: int) -> EventPlace:
        """Place a live event; history is :data:`BESIDE`.

        :param is_on_main_line: whether that group is on the main line, at its own number, with nothing
            on top
        """
        if not is_on_main_line or topological < self._floor or group_after < self._group:
            return BESIDE
        bits, reach = 0, None
        if group_after != self._group:
            bits = FIRST_BIT
            if self._highest > topological:
                reach = self._highest
            self._group, self._floor = group_after, topological
        self._highest = max(self._highest, topological)
        return EventPlace(bits, reach)


#: The place of an event that is not on the line.
BESIDE = EventPlace(BESIDE_BIT, None)


def event_places(txn: Transaction, room_no: int) -> EventPlaces:
    """The places of a room's next events. The caller holds the room's lock."""
    row = txn.execute(
        "SELECT e.group_after, e.topological, h.topological"
        " FROM synrepl._room_events e JOIN synrepl._room_heads h USING (room_no)"
        f" WHERE e.room_no = %s AND (e.audience & {FIRST_BIT}) <> 0"
        " ORDER BY e.group_after DESC LIMIT 1",
        (room_no,),
    ).fetchone_or_none()
    return EventPlaces() if row is None else EventPlaces(*row)


def rebuild_event_places(txn: Transaction, room: RoomRow) -> int:
    """Find the places of all events of a room again, as after its lines were rebuilt.

    The caller holds the room's lock.

    :returns: the number of events whose place is another one now
    """
    places, after, changed = EventPlaces(), -(1 << 63), 0
    while True:
        txn.execute(
            "SELECT e.event_no, e.stream_id, e.topological, e.group_after, l.group_no IS NULL,"
            f" e.audience & {BESIDE_BIT | FIRST_BIT}, e.reach"
            " FROM synrepl._room_events e LEFT JOIN synrepl._state_group_lines l"
            " ON l.room_no = e.room_no AND l.group_no = e.group_after"
            " WHERE e.room_no = %s AND e.stream_id > %s AND e.group_after IS NOT NULL"
            " ORDER BY e.stream_id LIMIT %s",
            (room.room_no, after, _PAGE_EVENTS),
        )
        page = txn.fetchall()
        if not page:
            return changed
        moved: list[tuple[int, int, int | None]] = []
        for event_no, stream, topological, group, is_on_line, bits, reach in page:
            place = places.place(group, is_on_line, topological) if stream > 0 else BESIDE
            if place != (bits, reach):
                moved.append((event_no, *place))
        txn.insert_many(
            f"UPDATE synrepl._room_events e SET audience = e.audience & ~{BESIDE_BIT | FIRST_BIT} | m.bits,"
            " reach = m.reach FROM (VALUES %s) AS m (event_no, bits, reach)"
            " WHERE e.event_no = m.event_no",
            moved,
            "(%s, %s, %s::bigint)",
        )
        changed += len(moved)
        after = page[-1][1]
