"""Packed groups as the truth, and a line beside them as an index: what the store has.

A group on the line has its position in its row. The entries of a group off the line are looked up in the
deltas up to the first group that is on it, so groups need no overlays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.room_shapes.histories import History, HistoryGroup
from benchmarks.room_shapes.line import RoomLine
from benchmarks.room_shapes.packed_groups import PackedGroups
from benchmarks.room_shapes.packing import FixedBytePacking, Packing
from benchmarks.room_shapes.shape import Connection, Cursor, Purged, TimedTransactions
from benchmarks.room_shapes.version_line import cut_versions, write_versions

_CREATE = """
    CREATE TABLE {t}_line (
        event_no bigint, line int NOT NULL, slot int NOT NULL, pos int NOT NULL
    );
    CREATE UNIQUE INDEX ON {t}_line (line, slot, pos) INCLUDE (event_no) WITH (fillfactor = 70);
    CREATE TABLE {t}_current (
        event_no bigint NOT NULL, room_no int NOT NULL, slot int NOT NULL,
        PRIMARY KEY (room_no, slot)
    ) WITH (fillfactor = 85);
    ALTER TABLE {t} ALTER changes SET STORAGE EXTERNAL;
"""

_CURRENT = """
    INSERT INTO {t}_current (room_no, slot, event_no)
    SELECT %s, slot, event_no FROM unnest(%s::int[], %s::bigint[]) AS new (slot, event_no)
    ON CONFLICT (room_no, slot) DO UPDATE SET event_no = excluded.event_no
"""

_ENTRIES = """
    WITH RECURSIVE walk (asked, hop, prev, line, pos, changes) AS (
        SELECT group_no, 0, prev, line, pos, CASE WHEN pos IS NULL THEN changes END
        FROM {t} WHERE room_no = {room} AND group_no = ANY(%s)
        UNION ALL
        SELECT asked, hop + 1, below.prev, below.line, below.pos,
            CASE WHEN below.pos IS NULL THEN below.changes END
        FROM walk JOIN {t} below ON below.room_no = {room} AND below.group_no = walk.prev
        WHERE walk.pos IS NULL
    )
    SELECT asked, hop, changes, slot, (
        SELECT event_no FROM {t}_line line
        WHERE line.line = walk.line AND line.slot = key.slot AND line.pos <= walk.pos
        ORDER BY line.pos DESC LIMIT 1
    )
    FROM walk LEFT JOIN unnest(%s::int[]) AS key (slot) ON pos IS NOT NULL
    ORDER BY hop
"""


class PackedWithLine(PackedGroups):
    """Packed groups and a line."""

    def __init__(self, room: int, packing: Packing | None = None) -> None:
        super().__init__(room, packing or FixedBytePacking(), name="packed and line")
        # By room, since purging looks for the groups of a room.
        self.key = "room_no, group_no"
        self.tables = [self.table, f"{self.table}_line", f"{self.table}_current"]
        self._line = RoomLine()
        self._current: int | None = None
        self._positions: dict[int, int] = {}

    def create(self, cursor: Cursor) -> None:
        """See :class:`.shape.Shape`."""
        super().create(cursor)
        cursor.execute(_CREATE.format(t=self.table))

    def more_columns(self) -> Mapping[str, str]:
        """See :class:`.packed_groups.PackedGroups`."""
        return {"line": "int", "pos": "int"}

    def more_values(self, group: int) -> Sequence[object]:
        """See :class:`.packed_groups.PackedGroups`."""
        pos = self._positions.get(group)
        return None if pos is None else self._room, pos

    def insert(self, cursor: Cursor, groups: Sequence[HistoryGroup], history: History) -> None:
        """See :class:`.shape.Shape`."""
        placed = self._line.place(groups, history)
        self._positions = placed.positions
        super().insert(cursor, groups, history)
        write_versions(cursor, f"{self.table}_line", self._room, placed)
        if self._line.newest != self._current:
            self._write_current(cursor, history)

    def _write_current(self, cursor: Cursor, history: History) -> None:
        """Write the current state, which for this purpose is that at the end of the line."""
        group = self._line.newest
        assert group is not None
        change: Mapping[int, int | None] = (
            history.state(group) if self._current is None else history.change(self._current, group)
        )
        self._current = group
        table = f"{self.table}_current"
        removed = [slot for slot, event in change.items() if event is None]
        kept = {slot: event for slot, event in change.items() if event is not None}
        if removed:
            cursor.execute(
                f"DELETE FROM {table} WHERE room_no = %s AND slot = ANY(%s)", (self._room, removed)
            )
        cursor.execute(_CURRENT.format(t=self.table), (self._room, list(kept), list(kept.values())))

    def entries_at(
        self, cursor: Cursor, groups: Sequence[int], slots: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        """See :class:`.shape.Shape`."""
        sql = _ENTRIES.format(t=self.table, room=self._room)
        cursor.execute(sql, (list(groups), list(slots)))
        overlays: dict[int, dict[int, int | None]] = {}
        found: dict[tuple[int, int], int | None] = {}
        for group, _, changes, slot, event in cursor:
            if changes is None:
                found[group, slot] = event
            else:
                older = self.packing.unpacked([changes])
                overlays[group] = {**older, **overlays.get(group, {})}
        for group, overlay in overlays.items():
            found.update(((group, slot), overlay[slot]) for slot in slots if slot in overlay)
        return {key: event for key, event in found.items() if event is not None}

    def purge(self, connection: Connection, low: int, high: int) -> Purged:
        """See :class:`.shape.Shape`."""
        running = TimedTransactions(connection)
        self.delete(connection, running, low, high)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT min(pos) FROM {self.table} WHERE room_no = %s AND line IS NOT NULL",
                (self._room,),
            )
            ((cut,),) = cursor.fetchall()
            cursor.execute(
                f"SELECT max(slot) FROM {self.table}_line WHERE line = %s", (self._room,)
            )
            ((last,),) = cursor.fetchall()
        for slot in range(0, last + 1, 250):
            running.run(
                lambda cursor, slot=slot: cut_versions(
                    cursor, f"{self.table}_line", self._room, cut, slot, slot + 249
                )
            )
        return running.done()
