"""Where events are along the main line of their room's states, so that pages of visible events are ranges.

An event is

- *on the line* when the state after it is a group of the main line, and no earlier one than that of the
  events before it;
- *near* it when the state after it was nearly that of the line as it was persisted: it differed in at most
  :data:`MAX_DIFFERENT` memberships. These are recorded. For everybody else it is as if it were on the line;
- *beside* it otherwise: on long branches, and in the history that came later.

On the line, the stream ordering and the state groups ascend together, so a user's membership from one
position of the line to another is a range of the stream ordering, and within bounds one of the topological
ordering. The first event of each group marks where its position is:

- every later event on the line has at least its topological ordering, and so has one near it that branched off
  later;
- every earlier one, on the line or near it, has at most its ``reach``, which is stored where it is above its
  own ordering.

An event to which this does not apply is beside. All of this is derived: it is found again from the events and
the lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import RoomTable
from synrepl.storage.rooms.visibility.audience import BESIDE_BIT, FIRST_BIT, NEAR_BIT

#: Groups of the line up to which an event may branch off before its head, to be near it.
MAX_BEHIND = 64

#: Memberships in which the state after an event near the line may differ.
MAX_DIFFERENT = 16

#: Rows for :attr:`EventPlace.different`.
BRANCHES_TABLE = RoomTable(
    "synrepl._branch_memberships", "room_no, slot, topological, stream_id, event_no"
)


class LinePosition(NamedTuple):
    """The first event of a group on the main line.

    :ivar changed: the slot in which the group differs from the one before; None if it may be several
    """

    group: int
    topological: int
    changed: int | None


class PlacedEvent(NamedTuple):
    """What decides an event's place.

    :ivar is_live: whether it is in the stream ordering, and not in the history that came later
    :ivar slot: None if it is no state event
    :ivar on_main_line: whether the group after it is at a position of the main line, maybe with something
        on top
    :ivar pos: that position
    :ivar overlay: the slots of what is on top
    """

    is_live: bool
    topological: int
    slot: int | None
    group_before: int
    group_after: int
    on_main_line: bool
    pos: int
    overlay: Collection[int]


class EventPlace(NamedTuple):
    """The place of an event.

    :ivar bits: to be set in its audience
    :ivar reach: see the migration
    :ivar different: the memberships in which the state after it may differ from the line, by slot
    """

    bits: int
    reach: int | None = None
    different: Collection[int] = ()


class EventPlaces:
    """Gives each event of a room its place, in the order in which they are persisted.

    :param positions: the newest positions, in order; :data:`MAX_BEHIND` are enough
    :param highest: the highest topological ordering so far, or above it
    """

    __slots__ = ("_highest", "_positions")

    def __init__(self, positions: Iterable[LinePosition] = (), highest: int = 0) -> None:
        self._positions = deque(positions, MAX_BEHIND)
        self._highest = highest

    def is_next(self, group_after: int, topological: int) -> bool:
        """Whether a live event is one more at the newest position, so that nothing is stored of its place.

        The same as :meth:`place`, and quicker: nothing need be known of the group.
        """
        if not self.has_next(group_after, topological):
            return False
        self._highest = max(self._highest, topological)
        return True

    def has_next(self, group_after: int, topological: int) -> bool:
        """Whether :meth:`is_next` would be true of an event."""
        newest = self._positions[-1] if self._positions else None
        return (
            newest is not None and group_after == newest.group and topological >= newest.topological
        )

    def place(self, event: PlacedEvent, relevant: Container[int]) -> EventPlace:
        """Place an event.

        :param relevant: the slots of memberships and of the history visibility
        """
        place = _BESIDE
        if event.is_live and event.on_main_line:
            is_plain = event.pos == event.group_after and not event.overlay
            newest = self._positions[-1] if self._positions else LinePosition(0, 0, None)
            if (
                is_plain
                and event.group_after >= newest.group
                and event.topological >= newest.topological
            ):
                place = self._on_line(event, newest)
            else:
                place = self._near(event, relevant)
        if not place.bits & BESIDE_BIT:
            self._highest = max(self._highest, event.topological)
        return place

    def _on_line(self, event: PlacedEvent, newest: LinePosition) -> EventPlace:
        if event.group_after == newest.group:
            return EventPlace(0)
        changed = event.slot if event.group_before == newest.group else None
        self._positions.append(LinePosition(event.group_after, event.topological, changed))
        reach = self._highest if self._highest > event.topological else None
        return EventPlace(FIRST_BIT, reach)

    def _near(self, event: PlacedEvent, relevant: Container[int]) -> EventPlace:
        different = {slot for slot in event.overlay if slot in relevant}
        for position in reversed(self._positions):
            if position.group <= event.pos:
                # What is between a position and the next one is not known.
                is_known = position.group == event.pos and event.topological >= position.topological
                if not is_known or len(different) > MAX_DIFFERENT:
                    return _BESIDE
                return EventPlace(NEAR_BIT, None, sorted(different))
            if position.changed is None:
                return _BESIDE
            if position.changed in relevant:
                different.add(position.changed)
        return _BESIDE


_BESIDE = EventPlace(BESIDE_BIT)


def event_places(txn: Transaction, room_no: int, before: int | None = None) -> EventPlaces:
    """The places of a room's next events. The caller holds the room's lock.

    :param before: the stream ordering of the next event, if it is not the next of all
    """
    only = "" if before is None else " AND stream_id < %(before)s"
    highest = (
        "(SELECT h.topological FROM synrepl._room_heads h WHERE h.room_no = %(room)s)"
        if before is None
        else "(SELECT max(topological) FROM synrepl._room_events WHERE room_no = %(room)s"
        " AND stream_id IS NOT NULL AND stream_id < %(before)s)"
    )
    txn.execute(
        "SELECT e.group_after, e.topological,"
        " CASE WHEN e.group_before = lag(e.group_after) OVER (ORDER BY e.group_after) THEN e.slot END,"
        f" {highest}"
        " FROM (SELECT group_before, group_after, topological, slot FROM synrepl._room_events"
        f" WHERE room_no = %(room)s AND (audience & {FIRST_BIT}) <> 0{only}"
        " ORDER BY group_after DESC LIMIT %(most)s) AS e ORDER BY e.group_after",
        {"room": room_no, "most": MAX_BEHIND, "before": before},
    )
    rows = txn.fetchall()
    return EventPlaces(
        (LinePosition(*row[:3]) for row in rows), max((row[3] or 0 for row in rows), default=0)
    )
