"""State lines are derived: built anew from the groups, and compared with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.event_places_rebuild import rebuild_event_places
from synrepl.storage.rooms.maintenance.marks import lock_marked, mark_room, reworked
from synrepl.storage.rooms.states.state_groups import (
    StoredGroup,
    delta_between,
    read_chains,
    read_slot_states,
    state_in,
)
from synrepl.storage.rooms.states.state_line import (
    LinePlace,
    LineWriter,
    StoredLine,
    new_line_no,
    read_lines,
    read_places,
    state_on_line,
)
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.pending_rows import PendingRows

#: Groups that are read together.
PAGE_GROUPS = 500

#: Newest lines whose heads a group may follow, when no event tells which group it was made from.
CANDIDATE_LINES = 4


class RebuiltLines(NamedTuple):
    """What was built again.

    :ivar groups: the number of groups that have a place on a line now
    :ivar lines: the number of lines
    :ivar held_ms: for how many milliseconds the room was locked
    """

    groups: int
    lines: int
    held_ms: float


def rebuild_room(txn: Transaction, room_no: int) -> RebuiltLines:
    """Build the lines of a room again, as other processes go on. The room is locked until the transaction ends.

    :raises NumberWithoutRow: the room, or a slot or an event of a group, is not here
    :raises UnknownStateGroup: :raises BrokenChain: a group cannot be put together
    """
    taken = mark_room(txn, room_no)
    lock = lock_marked(txn, taken.mark)
    groups = rebuild_lines(txn, lock.room)
    reworked(txn, taken.mark, lock)
    txn.execute("SELECT count(*) FROM synrepl._state_lines WHERE room_no = %s", (room_no,))
    (lines,) = txn.fetchone()
    return RebuiltLines(groups, int(lines), (perf_counter() - taken.since) * 1_000)


def drop_lines(txn: Transaction, room: RoomRow) -> None:
    """Empty everything about a room that is derived from its groups. Its entries cannot be looked up then."""
    txn.execute(
        "DELETE FROM synrepl._state_line v USING synrepl._state_lines l"
        " WHERE l.room_no = %s AND v.line_no = l.line_no",
        (room.room_no,),
    )
    txn.execute("DELETE FROM synrepl._state_group_lines WHERE room_no = %s", (room.room_no,))
    txn.execute("DELETE FROM synrepl._state_lines WHERE room_no = %s", (room.room_no,))
    txn.execute(
        "UPDATE synrepl._rooms SET main_line = NULL, revision = revision + 1 WHERE room_no = %s",
        (room.room_no,),
    )


def rebuild_lines(txn: Transaction, room: RoomRow) -> int:
    """Build the lines of a room from its groups, in one transaction; returns the number of groups.

    The places of the room's events go by its lines, so they are found again, too. The caller holds the
    room's lock. Memory goes with a page of groups or of events, and with the number of lines.

    :raises UnknownStateGroup: :raises BrokenChain: a group cannot be put together
    :raises NumberWithoutRow: a slot or an event of a group is not here
    """
    drop_lines(txn, room)
    rows = PendingRows()
    lines: dict[int, StoredLine] = {}
    places: dict[int, LinePlace] = {}
    writer = LineWriter(
        room.room_no,
        None,
        lines,
        places,
        lambda: new_line_no(txn),
    )

    def whole_state(group: int) -> Mapping[int, int]:
        return read_slot_states(txn, room.room_no, [group])[group]

    count = 0
    for page in _pages(txn, room.room_no):
        bases = _bases(txn, room.room_no, page)
        heads = sorted((line.head for line in lines.values()), reverse=True)[:CANDIDATE_LINES]
        here = room._replace(main_line=writer.main_line)
        places.clear()
        places.update(read_places(txn, here, {*bases.values(), *heads} - set(page)))
        known = read_chains(txn, room.room_no, {*page, *bases.values(), *heads})
        for group in page:
            if writer.main_line is None:
                writer.first(rows, group, state_in(group, known))
                continue
            base, change = _nearest(group, bases.get(group), lines, known)
            writer.add(rows, group, base, change, whole_state)
        rows.flush(txn)
        count += len(page)
    writer.finish(rows)
    rows.flush(txn)
    txn.execute(
        "UPDATE synrepl._rooms SET main_line = %s WHERE room_no = %s",
        (writer.main_line, room.room_no),
    )
    rebuild_event_places(txn, room._replace(main_line=writer.main_line))
    return count


def differing_groups(
    txn: Transaction, room: RoomRow, groups: Sequence[int] | None = None
) -> Iterator[int]:
    """The groups whose state is another one by the lines than by the groups themselves.

    :param groups: those to look at; None: all
    """
    pages = _pages(txn, room.room_no) if groups is None else iter([groups])
    for page in pages:
        known = read_chains(txn, room.room_no, page)
        places = read_places(txn, room, page)
        lines = read_lines(txn, {place.line_no for place in places.values()})
        for group in page:
            place = places.get(group)
            if place is None or state_on_line(txn, place, lines) != state_in(group, known):
                yield group


def _pages(txn: Transaction, room_no: int) -> Iterator[list[int]]:
    """The groups of a room in order."""
    after = 0
    while True:
        txn.execute(
            "SELECT group_no FROM synrepl._state_groups"
            " WHERE room_no = %s AND group_no > %s ORDER BY group_no LIMIT %s",
            (room_no, after, PAGE_GROUPS),
        )
        page = [int(group) for (group,) in txn.fetchall()]
        if not page:
            return
        yield page
        after = page[-1]


def _bases(txn: Transaction, room_no: int, page: Sequence[int]) -> dict[int, int]:
    """The groups before the state events that made some groups."""
    txn.execute(
        "SELECT group_after, max(group_before) FROM synrepl._room_events WHERE room_no = %s"
        " AND group_after = ANY (%s::bigint[]) AND group_before < group_after GROUP BY group_after",
        (room_no, list(page)),
    )
    return {int(after): int(before) for after, before in txn.fetchall()}


def _nearest(
    group: int,
    base: int | None,
    lines: Mapping[int, StoredLine],
    known: Mapping[int, StoredGroup],
) -> tuple[int, dict[int, int | None]]:
    """The group that another one is put on top of, and the change from it.

    :param base: the group that it was made from, if an event tells
    """
    if base is not None and base in known:
        return base, delta_between(base, group, known)
    heads = sorted((line.head for line in lines.values()), reverse=True)[:CANDIDATE_LINES]
    changes = [(head, delta_between(head, group, known)) for head in heads]
    return min(changes, key=lambda found: len(found[1]))
