"""Append-only versions along the room's line; a group is a position and an overlay.

There is one line for a room. The overlay of a group off the line has what its state differs in from the
line's at the position where it left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.room_shapes.histories import History, HistoryGroup
from benchmarks.room_shapes.line import Placed, RoomLine, Version
from benchmarks.room_shapes.packing import PairPacking
from benchmarks.room_shapes.shape import Connection, Cursor, Purged, State, TimedTransactions, copy

_CREATE = """
    CREATE TABLE {t}_groups (
        group_no bigint PRIMARY KEY, line int NOT NULL, pos int NOT NULL, size int NOT NULL,
        digest bytea NOT NULL, overlay bigint[]
    );
    CREATE TABLE {t}_line (
        event_no bigint, line int NOT NULL, slot int NOT NULL, pos int NOT NULL
    );
    CREATE UNIQUE INDEX ON {t}_line (line, slot, pos DESC) INCLUDE (event_no);
"""

_DIGEST = bytes(range(16))


class VersionLine:
    """Versions along a line."""

    def __init__(self, room: int) -> None:
        self.name = "versions"
        self.prefix = "versions"
        self._room = room
        self._line = RoomLine()
        self._packing = PairPacking()
        self._at: dict[int, tuple[int, dict[int, int | None]]] = {}

    @property
    def tables(self) -> Sequence[str]:
        """See :class:`.shape.Shape`."""
        return [f"{self.prefix}_groups", f"{self.prefix}_line"]

    def create(self, cursor: Cursor) -> None:
        """See :class:`.shape.Shape`."""
        cursor.execute(_CREATE.format(t=self.prefix))

    def insert(self, cursor: Cursor, groups: Sequence[HistoryGroup], history: History) -> None:
        """See :class:`.shape.Shape`."""
        placed = self._line.place(groups, history)
        rows = []
        for group in groups:
            pos = placed.positions.get(group.number)
            if pos is not None:
                self._at[group.number] = pos, {}
            else:
                at, overlay = self._at[group.parents[0]]
                self._at[group.number] = at, {**overlay, **group.change}
            at, overlay = self._at[group.number]
            packed = self._packing.packed(overlay)[0] if overlay else None
            rows.append((group.number, self._room, at, group.size, _DIGEST, packed))
        copy(cursor, f"{self.prefix}_groups", "group_no, line, pos, size, digest, overlay", rows)
        self.write(cursor, placed)

    def write(self, cursor: Cursor, placed: Placed) -> None:
        """Write what changes on the line."""
        write_versions(cursor, f"{self.prefix}_line", self._room, placed)

    def state_at(self, cursor: Cursor, group: int) -> State:
        """See :class:`.shape.Shape`."""
        pos, overlay = self._position(cursor, group)
        cursor.execute(self.states_sql().format(t=self.prefix), {"line": self._room, "pos": pos})
        state: dict[int, int | None] = dict(cursor.fetchall())
        state.update(overlay)
        return {slot: event for slot, event in state.items() if event is not None}

    def states_sql(self) -> str:
        """The statement that reads a whole state of the line."""
        return """
            SELECT DISTINCT ON (slot) slot, event_no FROM {t}_line
            WHERE line = %(line)s AND pos <= %(pos)s ORDER BY slot, pos DESC
        """

    def entries_at(
        self, cursor: Cursor, groups: Sequence[int], slots: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        """See :class:`.shape.Shape`."""
        cursor.execute(
            f"""
            SELECT at.group_no, key.slot, at.overlay, ({self.entry_sql()})
            FROM {{t}}_groups at, unnest(%s::int[]) AS key (slot) WHERE at.group_no = ANY(%s)
            """.format(t=self.prefix),
            (list(slots), list(groups)),
        )
        found = {}
        for group, slot, overlay, event in cursor:
            own = self._packing.unpacked([overlay]) if overlay else {}
            value = own.get(slot, event)
            if value is not None:
                found[group, slot] = value
        return found

    def entry_sql(self) -> str:
        """The sub-select that reads one entry of the line."""
        return """
            SELECT event_no FROM {t}_line line
            WHERE line.line = at.line AND line.slot = key.slot AND line.pos <= at.pos
            ORDER BY line.pos DESC LIMIT 1
        """

    def difference(self, cursor: Cursor, old: int, new: int) -> dict[int, int | None]:
        """See :class:`.shape.Shape`. Only slots with a version in between can differ."""
        (first, before), (last, after) = (self._position(cursor, each) for each in (old, new))
        low, high = min(first, last), max(first, last)
        slots = self._changed(cursor, low, high) | before.keys() | after.keys()
        found = self.entries_at(cursor, [old, new], sorted(slots))
        change: dict[int, int | None] = {}
        for slot in slots:
            one, two = found.get((old, slot)), found.get((new, slot))
            if one != two:
                change[slot] = two
        return change

    def _changed(self, cursor: Cursor, low: int, high: int) -> set[int]:
        cursor.execute(
            f"SELECT DISTINCT slot FROM {self.prefix}_line WHERE line = %s AND pos > %s AND pos <= %s",
            (self._room, low, high),
        )
        return {slot for (slot,) in cursor}

    def purge(self, connection: Connection, low: int, high: int) -> Purged:
        """See :class:`.shape.Shape`. For each slot the newest version before the cut stays."""
        running = TimedTransactions(connection)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT min(pos) FROM {self.prefix}_groups WHERE line = %s"
                " AND NOT group_no BETWEEN %s AND %s",
                (self._room, low, high),
            )
            ((cut,),) = cursor.fetchall()
            cursor.execute(
                f"SELECT max(slot) FROM {self.prefix}_line WHERE line = %s", (self._room,)
            )
            ((last,),) = cursor.fetchall()
        step = (high - low) // 8 + 1
        for first in range(low, high + 1, step):
            running.run(
                lambda cursor, first=first: cursor.execute(
                    f"DELETE FROM {self.prefix}_groups WHERE line = %s AND group_no BETWEEN %s AND %s",
                    (self._room, first, min(first + step - 1, high)),
                )
            )
        for slot in range(0, last + 1, 250):
            running.run(lambda cursor, slot=slot: self.cut(cursor, cut, slot, slot + 249))
        return running.done()

    def cut(self, cursor: Cursor, pos: int, first: int, last: int) -> None:
        """Delete what some slots had before a position."""
        cut_versions(cursor, f"{self.prefix}_line", self._room, pos, first, last)

    def _position(self, cursor: Cursor, group: int) -> tuple[int, Mapping[int, int | None]]:
        cursor.execute(
            f"SELECT pos, overlay FROM {self.prefix}_groups WHERE group_no = %s", (group,)
        )
        ((pos, overlay),) = cursor.fetchall()
        return pos, self._packing.unpacked([overlay]) if overlay else {}


def write_versions(cursor: Cursor, table: str, line: int, placed: Placed) -> None:
    """Write versions; of a stretch, the oldest versions of its slots are replaced."""
    if placed.unset:
        cursor.execute(
            f"DELETE FROM {table} WHERE line = %s AND slot = ANY(%s) AND pos = -2147483648",
            (line, placed.unset),
        )
    rows = [(event, line, slot, pos) for slot, pos, event in map(Version._make, placed.versions)]
    copy(cursor, table, "event_no, line, slot, pos", rows)


def cut_versions(cursor: Cursor, table: str, line: int, pos: int, first: int, last: int) -> None:
    """Delete versions of some slots that a newer one at or before a position follows."""
    cursor.execute(
        f"""
        DELETE FROM {table} old USING (
            SELECT slot, max(pos) AS pos FROM {table}
            WHERE line = %(line)s AND slot BETWEEN %(first)s AND %(last)s AND pos <= %(pos)s GROUP BY slot
        ) AS newest
        WHERE old.line = %(line)s AND old.slot = newest.slot AND old.pos < newest.pos
        """,
        {"line": line, "first": first, "last": last, "pos": pos},
    )
