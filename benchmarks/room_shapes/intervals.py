"""Intervals along the room's line: an entry from one position up to another."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.room_shapes.line import ALWAYS, Placed
from benchmarks.room_shapes.shape import Cursor, copy
from benchmarks.room_shapes.version_line import VersionLine

_CREATE = """
    CREATE TABLE {t}_groups (
        group_no bigint PRIMARY KEY, line int NOT NULL, pos int NOT NULL, size int NOT NULL,
        digest bytea NOT NULL, overlay bigint[]
    );
    CREATE TABLE {t}_line (
        event_no bigint NOT NULL, line int NOT NULL, slot int NOT NULL, pos int NOT NULL, upto int NOT NULL
    ) WITH (fillfactor = 80);
    CREATE UNIQUE INDEX ON {t}_line (line, slot, pos DESC) INCLUDE (upto, event_no);
"""

#: After every position.
STILL = 2**31 - 1


class Intervals(VersionLine):
    """Closed intervals; the newest of a slot is open."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.name = "intervals"
        self.prefix = "intervals"

    def create(self, cursor: Cursor) -> None:
        """See :class:`.shape.Shape`."""
        cursor.execute(_CREATE.format(t=self.prefix))

    def write(self, cursor: Cursor, placed: Placed) -> None:
        """See :class:`.version_line.VersionLine`."""
        starts: dict[int, list[tuple[int, int | None]]] = {}
        for slot, pos, event in placed.versions:
            starts.setdefault(slot, []).append((pos, event))
        rows = []
        if placed.unset:
            moved = {
                slot: self._before_known(slot, starts.get(slot, []), rows) for slot in placed.unset
            }
            cursor.execute(
                f"UPDATE {self.prefix}_line line SET pos = new.pos"
                " FROM unnest(%s::int[], %s::int[]) AS new (slot, pos)"
                " WHERE line.line = %s AND line.slot = new.slot AND line.pos = %s",
                (list(moved), list(moved.values()), self._room, ALWAYS),
            )
        else:
            first = {slot: found[0][0] for slot, found in starts.items()}
            cursor.execute(
                f"UPDATE {self.prefix}_line line SET upto = new.pos"
                " FROM unnest(%s::int[], %s::int[]) AS new (slot, pos)"
                " WHERE line.line = %s AND line.slot = new.slot AND line.upto = %s",
                (list(first), list(first.values()), self._room, STILL),
            )
            for slot, found in starts.items():
                ends = [pos for pos, _ in found[1:]] + [STILL]
                rows += [
                    (event, self._room, slot, pos, end)
                    for (pos, event), end in zip(found, ends, strict=True)
                    if event is not None
                ]
        copy(cursor, f"{self.prefix}_line", "event_no, line, slot, pos, upto", rows)

    def _before_known(
        self, slot: int, found: list[tuple[int, int | None]], rows: list[tuple[object, ...]]
    ) -> int:
        """Intervals of a stretch; the last of a slot is the oldest interval known so far, which begins there."""
        for (pos, event), (end, _) in pairwise(found):
            if event is not None:
                rows.append((event, self._room, slot, pos, end))
        return found[-1][0]

    def states_sql(self) -> str:
        """See :class:`.version_line.VersionLine`."""
        return """
            SELECT slot, event_no FROM {t}_line
            WHERE line = %(line)s AND pos <= %(pos)s AND upto > %(pos)s
        """

    def entry_sql(self) -> str:
        """See :class:`.version_line.VersionLine`."""
        return """
            SELECT CASE WHEN upto > at.pos THEN event_no END FROM {t}_line line
            WHERE line.line = at.line AND line.slot = key.slot AND line.pos <= at.pos
            ORDER BY line.pos DESC LIMIT 1
        """

    def _changed(self, cursor: Cursor, low: int, high: int) -> set[int]:
        cursor.execute(
            f"SELECT DISTINCT slot FROM {self.prefix}_line WHERE line = %(line)s"
            " AND (pos > %(low)s AND pos <= %(high)s OR upto > %(low)s AND upto <= %(high)s)",
            {"line": self._room, "low": low, "high": high},
        )
        return {slot for (slot,) in cursor}

    def cut(self, cursor: Cursor, pos: int, first: int, last: int) -> None:
        """See :class:`.version_line.VersionLine`."""
        cursor.execute(
            f"DELETE FROM {self.prefix}_line WHERE line = %s AND slot BETWEEN %s AND %s AND upto <= %s",
            (self._room, first, last, pos),
        )
