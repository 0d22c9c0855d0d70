"""One row a group, a delta with skip levels; the entries are packed into the row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from benchmarks.room_shapes.histories import History, HistoryGroup
from benchmarks.room_shapes.packing import Packing, PairPacking
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
from synrepl.rooms import Delta, SkipLevels, StateGroup, StateGroups, lookup_change, run

#: As bytea, a digest has 16 bytes (docs/adr/0023-states-in-postgres.md).
_DIGEST = bytes(range(16))

_LEVELS = SkipLevels()

_CREATE = """
    CREATE TABLE {t} (
        group_no bigint NOT NULL, prev bigint, room_no int NOT NULL, size int NOT NULL,
        {more}place smallint NOT NULL, digest bytea NOT NULL, {columns},
        PRIMARY KEY ({key})
    );
"""

#: Only numbers go through the recursion; the entries are read once for each row that was found.
_CHAINS = """
    WITH RECURSIVE chain (group_no, prev) AS (
        SELECT group_no, prev FROM {t} WHERE room_no = {room} AND group_no = ANY(%s)
        UNION
        SELECT below.group_no, below.prev
        FROM chain JOIN {t} below ON below.room_no = {room} AND below.group_no = chain.prev
    )
    SELECT stored.group_no, stored.prev, stored.place, {columns}
    FROM chain JOIN {t} stored ON stored.room_no = {room} AND stored.group_no = chain.group_no
"""

Entries = dict[int, int | None]


class PackedGroups:
    """Packed rows with skip levels."""

    def __init__(
        self,
        room: int,
        packing: Packing | None = None,
        levels: SkipLevels = _LEVELS,
        name: str = "packed",
    ) -> None:
        self.packing = packing or PairPacking()
        self._levels = levels
        self._room = room
        self.name = f"{name} {levels.width}^{levels.depth}, {self.packing.name}"
        self.table = f"{name}_{levels.width}_{self.packing.name}".replace(" ", "_")
        self.tables: Sequence[str] = [self.table]
        self._groups: dict[int, StateGroup] = {}
        self._first_at: dict[int, int] = {}
        self.key = "group_no"
        self._columns = ", ".join(self.packing.columns)

    def create(self, cursor: Cursor) -> None:
        """See :class:`.shape.Shape`."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.packing.columns.items())
        more = "".join(f"{name} {kind}, " for name, kind in self.more_columns().items())
        cursor.execute(_CREATE.format(t=self.table, columns=columns, more=more, key=self.key))

    def more_columns(self) -> Mapping[str, str]:
        """Further columns of the table."""
        return {}

    def more_values(self, group: int) -> Sequence[object]:
        """The values of these, for a group that was planned."""
        return ()

    def insert(self, cursor: Cursor, groups: Sequence[HistoryGroup], history: History) -> None:
        """See :class:`.shape.Shape`."""
        rows = []
        for group in groups:
            plan = self._planned(group, history)
            self._groups[group.number] = plan
            rows.append(
                (
                    group.number,
                    plan.prev,
                    self._room,
                    group.size,
                    *self.more_values(group.number),
                    plan.place,
                    _DIGEST,
                    *self.packing.packed(_entries(plan.delta)),
                )
            )
        more = "".join(f"{name}, " for name in self.more_columns())
        columns = f"group_no, prev, room_no, size, {more}place, digest, {self._columns}"
        copy(cursor, self.table, columns, rows)

    def state_at(self, cursor: Cursor, group: int) -> State:
        """See :class:`.shape.Shape`."""
        return self._states(cursor, [group])[group]

    def entries_at(
        self, cursor: Cursor, groups: Sequence[int], slots: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        """See :class:`.shape.Shape`."""
        chains = self._chains(cursor, groups)
        found = {}
        for group in groups:
            for slot in slots:
                at: int | None = group
                while at is not None:
                    at, entries = chains[at]
                    if slot in entries:
                        event = entries[slot]
                        if event is not None:
                            found[group, slot] = event
                        break
        return found

    def difference(self, cursor: Cursor, old: int, new: int) -> dict[int, int | None]:
        """See :class:`.shape.Shape`. Reads both chains; what they share is looked at for differing keys only."""
        chains = self._chains(cursor, [old, new])
        lines = [_line(chains, group) for group in (old, new)]
        shared = set(lines[0]) & set(lines[1])
        touched: set[int] = set()
        for line in lines:
            for group in line:
                if group in shared:
                    break
                touched.update(chains[group][1])
        before, after = ({slot: _at(chains, line, slot) for slot in touched} for line in lines)
        return compared(_present(before), _present(after))

    def purge(self, connection: Connection, low: int, high: int) -> Purged:
        """See :class:`.shape.Shape`. Of the groups that lose their base one becomes whole, others deltas to it."""
        running = TimedTransactions(connection)
        self.delete(connection, running, low, high)
        return running.done()

    def _rebased(self, cursor: Cursor, low: int, high: int) -> dict[int, StateGroup]:
        """How groups that stay are stored when those that go are gone."""
        cursor.execute(
            f"SELECT group_no, place FROM {self.table} WHERE prev BETWEEN %s AND %s"
            " AND room_no = %s AND NOT group_no BETWEEN %s AND %s",
            (low, high, self._room, low, high),
        )
        places = dict(cursor.fetchall())
        states = self._states(cursor, places)
        # The first becomes whole and has place 0, so that all others may refer to it.
        root, *others = sorted(places, key=lambda each: (places[each], each)) or [0]
        if not places:
            return {}
        found = {root: _whole(states[root])}
        for group in others:
            change = _delta(compared(states[root], states[group]))
            found[group] = StateGroup(root, change, places[group])
        return found

    def delete(
        self, connection: Connection, running: TimedTransactions, low: int, high: int
    ) -> None:
        """Rebase what stays, then delete rows that nothing refers to any more, in batches."""
        with connection, connection.cursor() as cursor:
            rebased = self._rebased(cursor, low, high)
            cursor.execute(
                f"SELECT group_no FROM {self.table} WHERE room_no = %s AND group_no BETWEEN %s AND %s",
                (self._room, low, high),
            )
            gone = [group for (group,) in cursor]
        assignments = ", ".join(f"{name} = %s" for name in self.packing.columns)
        update = f"UPDATE {self.table} SET prev = %s, place = %s, {assignments}"
        update += f" WHERE room_no = {self._room} AND group_no = %s"
        rows = [
            (plan.prev, plan.place, *self.packing.packed(_entries(plan.delta)), group)
            for group, plan in rebased.items()
        ]
        # In parts, since every state stays the same at each step; the whole state, which the others refer
        # to, is the first.
        for at in range(0, len(rows), 20):
            part = rows[at : at + 20]
            running.run(lambda cursor, part=part: cursor.executemany(update, part))
        self._groups.update(rebased)
        for numbers in slices(gone, 2000):
            running.run(
                lambda cursor, numbers=numbers: cursor.execute(
                    f"DELETE FROM {self.table} WHERE room_no = %s AND group_no = ANY(%s)",
                    (self._room, numbers),
                )
            )

    def _planned(self, group: HistoryGroup, history: History) -> StateGroup:
        if not group.parents:
            return _whole(history.state(group.number))
        base = group.parents[0]
        place = self._groups[base].place + 1
        found = self._delta_to(base, group.change, group.size)
        # Branches would repeat the long deltas of their places. They are closer to the branch that was
        # first at a place than to the group that this place refers to.
        first = self._first_at.setdefault(place, group.number)
        repeats = found is None or len(found.delta) > 2 * len(group.change)
        if repeats and first != group.number:
            other = self._delta_to(first, history.change(first, group.number), group.size)
            if other and (found is None or len(other.delta) < len(found.delta)):
                return other
        if found is None:
            self._first_at = {place: group.number}
            return _whole(history.state(group.number))
        return found

    def _delta_to(
        self, base: int, change: Mapping[int, int | None], size: int
    ) -> StateGroup | None:
        # The planner only compares keys and values, so slots and event numbers do as well.
        delta = cast(Any, _delta(change))
        return run(lookup_change(base, delta, size, self._levels), StateGroups(self._groups))

    def _chains(
        self, cursor: Cursor, groups: Collection[int]
    ) -> dict[int, tuple[int | None, Entries]]:
        sql = _CHAINS.format(t=self.table, columns=self._columns, room=self._room)
        cursor.execute(sql, (list(groups),))
        unpacked = self.packing.unpacked
        return {group: (prev, unpacked(values)) for group, prev, _, *values in cursor}

    def _states(self, cursor: Cursor, groups: Collection[int]) -> dict[int, State]:
        chains = self._chains(cursor, groups)
        found = {}
        for group in groups:
            state: Entries = {}
            for each in reversed(_line(chains, group)):
                state.update(chains[each][1])
            found[group] = _present(state)
        return found


def _line(chains: Mapping[int, tuple[int | None, Entries]], group: int) -> list[int]:
    line, at = [], cast("int | None", group)
    while at is not None:
        line.append(at)
        at = chains[at][0]
    return line


def _at(
    chains: Mapping[int, tuple[int | None, Entries]], line: Iterable[int], slot: int
) -> int | None:
    for group in line:
        if slot in chains[group][1]:
            return chains[group][1][slot]
    return None


def _present(state: Mapping[int, int | None]) -> State:
    return {slot: event for slot, event in state.items() if event is not None}


def _whole(state: State) -> StateGroup:
    return StateGroup(None, _delta(state), 0)


def _delta(change: Mapping[int, int | None]) -> Delta:
    present = _present(change)
    return cast(Any, Delta)(present, frozenset(change.keys() - present.keys()))  # type: ignore[no-any-return]


def _entries(change: Delta) -> Entries:
    found = cast(Entries, dict(change.entries))
    found.update(dict.fromkeys(cast("Iterable[int]", change.removed)))
    return found
