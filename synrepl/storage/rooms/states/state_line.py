"""State lines: where entries of states are looked up by key.

A line is the history of a state, group after group, as versions of each slot. A group that follows the head
of a line extends it; another one is at a position of a line with a few entries on top (its *overlay*). When
an overlay outgrows :data:`MAX_OVERLAY`, the group becomes the head of a new line on top of the old one.
So an entry of any group is one index probe per line of a short ancestry, and what a group adds
goes with what it changes.

Lines are derived from the groups: see :mod:`synrepl.storage.rooms.maintenance.line_rebuild`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.states.state_groups import SlotChange
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable, array_text

#: Entries on top of a line, from which on a group gets a line of its own. The overlays of a branch of n
#: groups have n²/2 entries.
MAX_OVERLAY = 64

#: Ancestors of a line; beyond, a new line begins with a copy of the whole state.
MAX_LINE_DEPTH = 6


class LinePlace(NamedTuple):
    """Where a group is.

    :ivar pos: the newest versions at or before this position count
    :ivar overlay: entries on top of the line; None for one that is removed
    """

    line_no: int
    pos: int
    overlay: SlotChange


class StoredLine(NamedTuple):
    """A row of ``_state_lines``.

    :ivar head: the last group that is on the line
    """

    line_no: int
    parent: int | None
    parent_pos: int | None
    depth: int
    head: int


#: By line and slot: versions as position and event number, oldest first.
PendingVersions = Mapping[tuple[int, int], Sequence[tuple[int, int | None]]]

LINE_TABLE = RoomTable("synrepl._state_line", "line_no, slot, pos, event_no")
PLACES_TABLE = RoomTable(
    "synrepl._state_group_lines", "group_no, pos, room_no, line_no, slots, event_nos"
)

# A process asks these again and again; planning them takes as long as running them.
_PLACES = Script(
    [
        PlannedOnce(
            "SELECT group_no, line_no, pos, slots, event_nos FROM synrepl._state_group_lines"
            " WHERE room_no = %s AND group_no = ANY (%s::bigint[])"
        )
    ]
)
_LINES = Script(
    [
        PlannedOnce(
            "WITH RECURSIVE line (line_no) AS (SELECT unnest(%s::int[]) UNION"
            " SELECT l.parent FROM line JOIN synrepl._state_lines l USING (line_no)"
            " WHERE l.parent IS NOT NULL)"
            " SELECT line_no, parent, parent_pos, depth, head"
            " FROM line JOIN synrepl._state_lines USING (line_no)"
        )
    ]
)
_NEWEST_VERSIONS = Script(
    [
        PlannedOnce(
            "SELECT DISTINCT ON (p.number) p.number, v.event_no"
            " FROM unnest(%s::int[], %s::int[], %s::int[], %s::int[], %s::bigint[])"
            " AS p (number, depth, line_no, slot, pos)"
            " CROSS JOIN LATERAL (SELECT l.event_no FROM synrepl._state_line l"
            "  WHERE l.line_no = p.line_no AND l.slot = p.slot AND l.pos <= p.pos"
            "  ORDER BY l.pos DESC LIMIT 1) v ORDER BY p.number, p.depth"
        )
    ]
)


#: Reads the whole state of a group, in numbers.
WholeState = Callable[[int], Mapping[int, int]]


def read_places(txn: Transaction, room: RoomRow, groups: Collection[int]) -> dict[int, LinePlace]:
    """Where groups are. It is not checked that they exist."""
    if not groups or room.main_line is None:
        return {}
    main_line = room.main_line
    places = {group: LinePlace(main_line, group, {}) for group in groups}
    txn.execute(
        _PLACES,
        (room.room_no, array_text(groups)),
    )
    for group, line_no, pos, slots, event_nos in txn.fetchall():
        places[group] = LinePlace(line_no, pos, dict(zip(slots, event_nos, strict=True)))
    return places


def read_lines(txn: Transaction, line_nos: Collection[int]) -> dict[int, StoredLine]:
    """Lines with their ancestors."""
    if not line_nos:
        return {}
    txn.execute(
        _LINES,
        (array_text(line_nos),),
    )
    return {row[0]: StoredLine._make(row) for row in txn.fetchall()}


def look_up(
    txn: Transaction,
    wanted: Sequence[tuple[LinePlace, int]],
    lines: Mapping[int, StoredLine],
    pending: PendingVersions = MappingProxyType({}),
) -> list[int | None]:
    """Entries of states, each given as a place and a slot, in one statement.

    :param lines: those of the places, with their ancestors
    :param pending: versions that are not in the table yet
    """
    found: list[int | None] = [None] * len(wanted)
    probes: list[tuple[int, int, int, int, int]] = []
    for number, (place, slot) in enumerate(wanted):
        if slot in place.overlay:
            found[number] = place.overlay[slot]
            continue
        for depth, (line_no, pos) in enumerate(ancestry(place, lines)):
            newest = _newest(pending.get((line_no, slot), ()), pos) if pending else None
            if newest is not None:
                # It is newer than any of this line in the table. One of a line that is nearer counts more.
                found[number] = newest[1]
                break
            probes.append((number, depth, line_no, slot, pos))
    if probes:
        txn.execute(
            _NEWEST_VERSIONS,
            [array_text(column) for column in zip(*probes, strict=True)],
        )
        for number, event_no in txn.fetchall():
            found[number] = event_no
    return found


def _newest(versions: Sequence[tuple[int, int | None]], pos: int) -> tuple[int, int | None] | None:
    """The last version at or before a position."""
    return next((each for each in reversed(versions) if each[0] <= pos), None)


def ancestry(place: LinePlace, lines: Mapping[int, StoredLine]) -> Iterator[tuple[int, int]]:
    """The lines that an entry may be on, nearest first, each with the position up to which it counts."""
    line_no: int | None = place.line_no
    pos = place.pos
    while line_no is not None:
        yield line_no, pos
        line = lines.get(line_no)
        if line is None:
            raise NumberWithoutRow(what="state line", number=line_no, room_no="of its groups")
        line_no, pos = line.parent, line.parent_pos or 0


def state_on_line(
    txn: Transaction, place: LinePlace, lines: Mapping[int, StoredLine]
) -> dict[int, int]:
    """A whole state by its line. The truth is in the groups; this is for checks."""
    state: dict[int, int | None] = {}
    for line_no, pos in reversed(list(ancestry(place, lines))):
        txn.execute(
            "SELECT DISTINCT ON (slot) slot, event_no FROM synrepl._state_line"
            " WHERE line_no = %s AND pos <= %s ORDER BY slot, pos DESC",
            (line_no, pos),
        )
        state.update(txn.fetchall())
    state.update(place.overlay)
    return {slot: event_no for slot, event_no in state.items() if event_no is not None}


class LineWriter:
    """Gives each new group of a room its place.

    :param lines: those of ``places``, with their ancestors; new and changed ones are added
    :param places: of the groups that others are based on; those of new groups are added
    :param new_line_no: draws the number of a new line
    """

    def __init__(
        self,
        room_no: int,
        main_line: int | None,
        lines: dict[int, StoredLine],
        places: dict[int, LinePlace],
        new_line_no: Callable[[], int],
    ) -> None:
        self.main_line = main_line
        self._room_no = room_no
        self._lines = lines
        self._places = places
        self._new_line_no = new_line_no
        self._changed: set[int] = set()
        self._made: set[int] = set()
        #: Versions that were made here, by line and slot; see :func:`look_up`.
        self.pending: dict[tuple[int, int], list[tuple[int, int | None]]] = {}

    def first(
        self,
        rows: PendingRows,
        group: int,
        state: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Begin the room's main line with its first group.

        :param state: of the group, in numbers; empty in a room that was not purged
        """
        line_no = self.main_line = self._new_line_no()
        self._lines[line_no] = StoredLine(line_no, None, None, 0, group)
        self._made.add(line_no)
        self._versions(rows, line_no, group, state)
        self._places[group] = LinePlace(line_no, group, {})

    def add(
        self,
        rows: PendingRows,
        group: int,
        base: int,
        change: SlotChange,
        whole_state: WholeState,
    ) -> LinePlace:
        """Give a group its place.

        :param base: the group that it differs from by ``change``; has a place
        :param whole_state: reads the whole state of a group, in numbers
        """
        place = self._places[base]
        line = self._lines[place.line_no]
        # A group has an overlay only after another one has moved the line's head on.
        if line.head == place.pos:
            self._versions(rows, line.line_no, group, change)
            self._lines[line.line_no] = StoredLine(*line[:4], group)
            self._changed.add(line.line_no)
            made = LinePlace(line.line_no, group, {})
        elif len(place.overlay.keys() | change.keys()) <= MAX_OVERLAY:
            made = LinePlace(place.line_no, place.pos, {**place.overlay, **change})
        else:
            made = self._branch(rows, group, base, change, whole_state)
        self._places[group] = made
        if made.line_no != self.main_line or made.pos != group:
            rows.add(
                PLACES_TABLE,
                (
                    group,
                    made.pos,
                    self._room_no,
                    made.line_no,
                    list(made.overlay),
                    list(made.overlay.values()),
                ),
            )
        return made

    def _branch(
        self,
        rows: PendingRows,
        group: int,
        base: int,
        change: SlotChange,
        whole_state: WholeState,
    ) -> LinePlace:
        place = self._places[base]
        below = self._lines[place.line_no]
        line_no = self._new_line_no()
        if below.depth < MAX_LINE_DEPTH:
            entries: SlotChange = {**place.overlay, **change}
            line = StoredLine(line_no, below.line_no, place.pos, below.depth + 1, group)
        else:
            whole: dict[int, int | None] = {**whole_state(base), **change}
            entries = {slot: number for slot, number in whole.items() if number is not None}
            line = StoredLine(line_no, None, None, 0, group)
        self._versions(rows, line_no, group, entries)
        self._lines[line_no] = line
        self._made.add(line_no)
        return LinePlace(line_no, group, {})

    def finish(self, rows: PendingRows) -> None:
        """Write the lines that are new or have another head."""
        made, self._made = self._made, set()
        changed, self._changed = self._changed - made, set()
        for line_no in made:
            line = self._lines[line_no]
            rows.add(
                _LINES_TABLE,
                (
                    line_no,
                    self._room_no,
                    line.parent,
                    line.parent_pos,
                    line.depth,
                    line.head,
                ),
            )
        for line_no in changed:
            line = self._lines[line_no]
            rows.run(
                "UPDATE synrepl._state_lines SET head = %s WHERE line_no = %s",
                (line.head, line_no),
            )

    def _versions(self, rows: PendingRows, line_no: int, group: int, change: SlotChange) -> None:
        for slot, number in change.items():
            self.pending.setdefault((line_no, slot), []).append((group, number))
        rows.extend(LINE_TABLE, [(line_no, slot, group, number) for slot, number in change.items()])


_LINES_TABLE = RoomTable(
    "synrepl._state_lines", "line_no, room_no, parent, parent_pos, depth, head"
)


def new_line_no(txn: Transaction) -> int:
    """The number of a new line."""
    txn.execute("SELECT nextval(pg_get_serial_sequence('synrepl._state_lines', 'line_no'))")
    return int(txn.fetchone()[0])
