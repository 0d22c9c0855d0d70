"""Checks the state lines of a room against its groups.

A line is followed from its beginning, with the state at each position: where a group is, the digest of that state and
the group's overlay must be the group's digest. So it costs as much as there are versions and overlays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.findings import CheckedPage, RoomFinding, RoomProblem
from synrepl.storage.rooms.maintenance.verify_groups import EntryNames
from synrepl.storage.rooms.states.state_digest import StateDigest
from synrepl.storage.rooms.states.state_line import LinePlace, StoredLine, read_lines, state_on_line
from synrepl.storage.rooms.tables.numbers import RoomRow

#: Each page reads through the versions of the whole line, which have no index by position. So a long line has
#: larger pages, not more of them.
MAX_PAGES = 64
MAX_PAGE = 50_000

# Two ranges instead of one join: without statistics, PostgreSQL would compare each group with each position.
_ON_MAIN_LINE = (
    " FROM synrepl._state_groups g WHERE g.room_no = %(room)s AND g.group_no > %(after)s"
    " AND (SELECT main_line FROM synrepl._rooms WHERE room_no = %(room)s) = %(line)s"
    " AND NOT EXISTS (SELECT FROM synrepl._state_group_lines p"
    "  WHERE p.room_no = g.room_no AND p.group_no = g.group_no)"
)
_LAST_POSITION = (
    "SELECT max(pos) FROM ("
    f"(SELECT g.group_no AS pos{_ON_MAIN_LINE} ORDER BY g.group_no LIMIT %(limit)s)"
    " UNION (SELECT DISTINCT p.pos FROM synrepl._state_group_lines p"
    "  JOIN synrepl._state_groups g USING (room_no, group_no)"
    "  WHERE p.room_no = %(room)s AND p.line_no = %(line)s AND p.pos > %(after)s"
    "  ORDER BY p.pos LIMIT %(limit)s)"
    " ORDER BY pos LIMIT %(limit)s) AS page"
)
_GROUPS = (
    "SELECT g.group_no, g.group_no AS pos, NULL::int[], NULL::bigint[], g.digest"
    f"{_ON_MAIN_LINE} AND g.group_no <= %(last)s"
    " UNION ALL SELECT p.group_no, p.pos, p.slots, p.event_nos, g.digest"
    " FROM synrepl._state_group_lines p JOIN synrepl._state_groups g USING (room_no, group_no)"
    " WHERE p.room_no = %(room)s AND p.line_no = %(line)s AND p.pos > %(after)s AND p.pos <= %(last)s"
    " ORDER BY pos, group_no"
)


def lines_to_verify(txn: Transaction, room: RoomRow) -> list[StoredLine]:
    """The lines of a room that are in use."""
    txn.execute(
        "SELECT line_no FROM synrepl._state_lines WHERE room_no = %s AND depth >= 0",
        (room.room_no,),
    )
    numbers = [int(line_no) for (line_no,) in txn.fetchall()]
    lines = read_lines(txn, numbers)
    return [lines[number] for number in sorted(numbers) if number in lines]


def places_without_line(txn: Transaction, room: RoomRow, limit: int) -> list[RoomFinding]:
    """Groups that are on no line of the room."""
    txn.execute(
        "SELECT g.group_no, coalesce(p.line_no, r.main_line) FROM synrepl._state_groups g"
        " JOIN synrepl._rooms r USING (room_no)"
        " LEFT JOIN synrepl._state_group_lines p USING (room_no, group_no)"
        " WHERE g.room_no = %s AND NOT EXISTS (SELECT FROM synrepl._state_lines l"
        "  WHERE l.room_no = g.room_no AND l.line_no = coalesce(p.line_no, r.main_line)) LIMIT %s",
        (room.room_no, limit),
    )
    found = [
        (f"state group {group}", f"line {line_no} of the group is not in the room")
        for group, line_no in txn.fetchall()
    ]
    txn.execute(
        "SELECT p.group_no FROM synrepl._state_group_lines p WHERE p.room_no = %s"
        " AND NOT EXISTS (SELECT FROM synrepl._state_groups g"
        "  WHERE g.room_no = p.room_no AND g.group_no = p.group_no) LIMIT %s",
        (room.room_no, limit),
    )
    found += [
        (f"state group {group}", "it has a place on a line, and no row")
        for (group,) in txn.fetchall()
    ]
    return [RoomFinding(RoomProblem.WRONG_LINE, room.room_id, *each) for each in found]


class LineVerifier:
    """Follows a line, page after page."""

    def __init__(self, room: RoomRow, line: StoredLine) -> None:
        self._room = room
        self._line = line
        self._names = EntryNames(room.room_no)
        self._state: dict[int, int] | None = None
        self._versions = 0
        self._digest = StateDigest(room.digest_key)
        #: Slots whose entries are not here. A version that no group sees may be left when its event is purged.
        self._unnamed: set[int] = set()

    def page(self, txn: Transaction, after: tuple[bool, int], limit: int) -> CheckedPage:
        """Check the groups at the next positions.

        :param after: ``(False, 0)``, or where the page before ended
        :param limit: of positions; more on a long line
        """
        if self._state is None:
            self._begin(txn)
        params = {
            "room": self._room.room_no,
            "line": self._line.line_no,
            "after": after[1],
            "limit": max(limit, min(self._versions // MAX_PAGES, MAX_PAGE)),
        }
        txn.execute(_LAST_POSITION, params)
        (last,) = txn.fetchone()
        if last is None:
            return CheckedPage((), 0, None)
        txn.execute(_GROUPS, params | {"last": last})
        groups = txn.fetchall()
        txn.execute(
            "SELECT pos, slot, event_no FROM synrepl._state_line"
            " WHERE line_no = %(line)s AND pos > %(after)s AND pos <= %(last)s ORDER BY pos",
            params | {"last": last},
        )
        versions = txn.fetchall()
        self._read_names(txn, versions, groups)
        findings: list[RoomFinding] = []
        at = 0
        for group, pos, slots, event_nos, digest in groups:
            while at < len(versions) and versions[at][0] <= pos:
                self._set(versions[at][1], versions[at][2])
                at += 1
            overlay = dict(zip(slots or (), event_nos or (), strict=True))
            found, is_known = self._with_overlay(overlay)
            if not is_known or found.digest != bytes(digest):
                detail = f"its state by line {self._line.line_no} is not the one of its row"
                findings.append(self._finding(f"state group {group}", detail))
        return CheckedPage(findings, len(groups), (False, last))

    def _begin(self, txn: Transaction) -> None:
        self._state = {}
        line = self._line
        txn.execute("SELECT count(*) FROM synrepl._state_line WHERE line_no = %s", (line.line_no,))
        (self._versions,) = txn.fetchone()
        if line.parent is not None and line.parent_pos is not None:
            lines = read_lines(txn, [line.parent])
            place = LinePlace(line.parent, line.parent_pos, {})
            state = state_on_line(txn, place, lines)
            self._names.read(txn, state, state.values())
            for slot, number in state.items():
                self._set(slot, number)

    def _read_names(
        self,
        txn: Transaction,
        versions: Iterable[tuple[int, int, int | None]],
        groups: Iterable[tuple[int, int, list[int] | None, list[int | None] | None, bytes]],
    ) -> None:
        assert self._state is not None
        slots: set[int] = set()
        numbers: set[int] = set()
        for _, slot, number in versions:
            slots.add(slot)
            if number is not None:
                numbers.add(number)
        for _, _, overlaid, event_nos, _ in groups:
            slots.update(overlaid or ())
            numbers.update(each for each in event_nos or () if each is not None)
        numbers.update(self._state[slot] for slot in slots if slot in self._state)
        self._names.read(txn, slots, numbers)

    def _with_overlay(self, overlay: Mapping[int, int | None]) -> tuple[StateDigest, bool]:
        """The digest of the state at the position with a group's overlay, and whether all of it is known."""
        assert self._state is not None
        digest = self._digest
        is_known = not self._unnamed - overlay.keys()
        for slot, number in overlay.items():
            digest = self._without(digest, slot)
            if number is not None:
                named = self._names.entry(slot, number)
                is_known = is_known and named is not None
                digest = digest if named is None else digest.added([named])
        return digest, is_known

    def _without(self, digest: StateDigest, slot: int) -> StateDigest:
        assert self._state is not None
        old = self._state.get(slot)
        named = None if old is None or slot in self._unnamed else self._names.entry(slot, old)
        return digest if named is None else digest.removed([named])

    def _set(self, slot: int, number: int | None) -> None:
        """Set an entry of the state at the position."""
        assert self._state is not None
        self._digest = self._without(self._digest, slot)
        self._unnamed.discard(slot)
        if number is None:
            self._state.pop(slot, None)
            return
        self._state[slot] = number
        named = self._names.entry(slot, number)
        if named is None:
            self._unnamed.add(slot)
        else:
            self._digest = self._digest.added([named])

    def _finding(self, subject: str, detail: str) -> RoomFinding:
        return RoomFinding(RoomProblem.WRONG_LINE, self._room.room_id, subject, detail)
