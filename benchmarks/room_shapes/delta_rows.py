"""One row an entry; a group is a delta to the one before, and whole after 100 of them: what servers do today.

Deltas have no removals, so a state with one is stored whole. As text, rows hold room ID, type, state key
and event ID, as those servers have them; otherwise numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.room_shapes.histories import History, HistoryGroup
from benchmarks.room_shapes.shape import (
    Connection,
    Cursor,
    Purged,
    State,
    TimedTransactions,
    compared,
    copy,
    slices,
)

_MAX_HOPS = 100

_ROOM = "!AbCdEfGhIjKlMnOpQr:a.example"

_CREATE = """
    CREATE TABLE {t}_groups (group_no bigint PRIMARY KEY, room text);
    CREATE TABLE {t}_edges (group_no bigint, prev bigint);
    CREATE UNIQUE INDEX ON {t}_edges (group_no, prev);
    CREATE INDEX ON {t}_edges (prev);
    CREATE TABLE {t}_rows (group_no bigint, {columns});
    CREATE INDEX ON {t}_rows (group_no, {key});
"""

_CHAIN = """
    WITH RECURSIVE chain (asked, group_no, hop) AS (
        SELECT group_no, group_no, 0 FROM {t}_groups WHERE group_no = ANY(%(groups)s)
        UNION ALL
        SELECT asked, edge.prev, hop + 1 FROM chain JOIN {t}_edges edge USING (group_no)
    )
"""


class DeltaRows:
    """One row an entry, whole after 100 deltas.

    :param text: rows hold IDs rather than numbers
    """

    def __init__(self, room: int, *, text: bool = False) -> None:
        self.name = "rows, whole every 100" + (", text" if text else "")
        self._table = "text_rows" if text else "number_rows"
        self._text = text
        self._room = _ROOM if text else str(room)
        self._key = "type, state_key" if text else "slot"
        self._hops: dict[int, int] = {}
        self._history: History | None = None
        self.tables = [f"{self._table}_{each}" for each in ("groups", "edges", "rows")]

    def create(self, cursor: Cursor) -> None:
        """See :class:`.shape.Shape`."""
        columns = (
            "room_id text, type text, state_key text, event_id text"
            if self._text
            else "slot int, event_no bigint"
        )
        cursor.execute(_CREATE.format(t=self._table, columns=columns, key=self._key))

    def insert(self, cursor: Cursor, groups: Sequence[HistoryGroup], history: History) -> None:
        """See :class:`.shape.Shape`."""
        self._history = history
        edges, rows = [], []
        for group in groups:
            hops = self._hops[group.parents[0]] + 1 if group.parents else 0
            change: dict[int, int] | None = {
                slot: event for slot, event in group.change.items() if event is not None
            }
            if not group.parents or hops > _MAX_HOPS or len(change or ()) < len(group.change):
                hops, change = 0, history.state(group.number)
            else:
                edges.append((group.number, group.parents[0]))
            self._hops[group.number] = hops
            rows += self._rows(group.number, change or {})
        t = self._table
        copy(cursor, f"{t}_groups", "group_no, room", [(g.number, self._room) for g in groups])
        copy(cursor, f"{t}_edges", "group_no, prev", edges)
        self._copy_rows(cursor, rows)

    def state_at(self, cursor: Cursor, group: int) -> State:
        """See :class:`.shape.Shape`."""
        cursor.execute(
            f"""{_CHAIN} SELECT DISTINCT ON ({self._key}) {self._key},
                    {"event_id" if self._text else "event_no"}
                FROM chain JOIN {{t}}_rows USING (group_no) ORDER BY {self._key}, hop
            """.format(t=self._table),
            {"groups": [group]},
        )
        if not self._text:
            return dict(cursor.fetchall())
        assert self._history is not None
        numbers = self._history.slots.numbers
        return {numbers[kind, key]: int(event[1:]) for kind, key, event in cursor}

    def entries_at(
        self, cursor: Cursor, groups: Sequence[int], slots: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        """See :class:`.shape.Shape`."""
        condition, values = "slot = ANY(%(slots)s)", {"groups": list(groups), "slots": list(slots)}
        if self._text:
            assert self._history is not None
            keys = [self._history.slots.keys[slot] for slot in slots]
            condition = "(type, state_key) IN %(keys)s"
            values = {"groups": list(groups), "keys": tuple(keys)}  # type: ignore[dict-item]
        cursor.execute(
            f"""{_CHAIN} SELECT DISTINCT ON (asked, {self._key}) asked, {self._key},
                    {"event_id" if self._text else "event_no"}
                FROM chain JOIN {{t}}_rows USING (group_no) WHERE {condition}
                ORDER BY asked, {self._key}, hop
            """.format(t=self._table),
            values,
        )
        if not self._text:
            return {(group, slot): event for group, slot, event in cursor}
        assert self._history is not None
        numbers = self._history.slots.numbers
        return {(group, numbers[kind, key]): int(event[1:]) for group, kind, key, event in cursor}

    def difference(self, cursor: Cursor, old: int, new: int) -> dict[int, int | None]:
        """See :class:`.shape.Shape`."""
        return compared(self.state_at(cursor, old), self.state_at(cursor, new))

    def purge(self, connection: Connection, low: int, high: int) -> Purged:
        """See :class:`.shape.Shape`. Groups that lose their base become whole, so rows are added first."""
        running = TimedTransactions(connection)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT group_no FROM {self._table}_edges WHERE prev BETWEEN %s AND %s"
                " AND NOT group_no BETWEEN %s AND %s",
                (low, high, low, high),
            )
            hanging = [group for (group,) in cursor]
        for group in hanging:
            running.run(lambda cursor, group=group: self._make_whole(cursor, group))
        with connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT group_no FROM {self._table}_groups WHERE group_no BETWEEN %s AND %s",
                (low, high),
            )
            gone = [group for (group,) in cursor]
        for part in slices(gone, 1000):
            running.run(lambda cursor, part=part: self._delete(cursor, part))
        return running.done()

    def _make_whole(self, cursor: Cursor, group: int) -> None:
        state = self.state_at(cursor, group)
        cursor.execute(f"DELETE FROM {self._table}_edges WHERE group_no = %s", (group,))
        cursor.execute(f"DELETE FROM {self._table}_rows WHERE group_no = %s", (group,))
        self._copy_rows(cursor, self._rows(group, state))

    def _delete(self, cursor: Cursor, groups: list[int]) -> None:
        for table in self.tables:
            cursor.execute(f"DELETE FROM {table} WHERE group_no = ANY(%s)", (groups,))

    def _rows(self, group: int, state: dict[int, int]) -> list[tuple[object, ...]]:
        if not self._text:
            return [(group, slot, event) for slot, event in state.items()]
        assert self._history is not None
        keys = self._history.slots.keys
        return [(group, _ROOM, *keys[slot], f"${event:043}") for slot, event in state.items()]

    def _copy_rows(self, cursor: Cursor, rows: list[tuple[object, ...]]) -> None:
        columns = "room_id, type, state_key, event_id" if self._text else "slot, event_no"
        copy(cursor, f"{self._table}_rows", f"group_no, {columns}", rows)
