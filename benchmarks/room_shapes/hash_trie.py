"""A trie of 16 children per node, nodes as rows; states share the nodes that they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.room_shapes.histories import History, HistoryGroup
from benchmarks.room_shapes.shape import (
    Connection,
    Cursor,
    Purged,
    State,
    TimedTransactions,
    copy,
    slices,
)

_BITS = 4
_WIDTH = 1 << _BITS

#: Levels: enough for 65,536 slots.
_DEPTH = 4

_CREATE = """
    CREATE TABLE trie_groups (
        group_no bigint PRIMARY KEY, root bigint NOT NULL, room_no int NOT NULL, size int NOT NULL,
        digest bytea NOT NULL
    );
    CREATE TABLE trie_nodes (node_no bigint PRIMARY KEY, room_no int NOT NULL, children bigint[] NOT NULL);
"""

_DIGEST = bytes(range(16))

_Node = tuple[int, ...]
_EMPTY: _Node = (0,) * _WIDTH


class HashTrie:
    """Nodes as rows; 0 stands for no child and no event."""

    def __init__(self, room: int) -> None:
        self.name = "trie of nodes"
        self.tables = ["trie_groups", "trie_nodes"]
        self._room = room
        self._count = 0
        self._nodes: dict[int, _Node] = {0: _EMPTY}
        self._roots: dict[int, int] = {}
        self._fresh: dict[int, _Node] = {}

    def create(self, cursor: Cursor) -> None:
        """See :class:`.shape.Shape`."""
        cursor.execute(_CREATE)

    def insert(self, cursor: Cursor, groups: Sequence[HistoryGroup], history: History) -> None:
        """See :class:`.shape.Shape`."""
        rows = []
        self._fresh = {}
        for group in groups:
            root = self._roots[group.parents[0]] if group.parents else 0
            root = self._put(root, _DEPTH - 1, sorted(group.change.items()))
            self._roots[group.number] = root
            rows.append((group.number, root, self._room, group.size, _DIGEST))
        nodes = [(node, self._room, list(children)) for node, children in self._fresh.items()]
        copy(cursor, "trie_nodes", "node_no, room_no, children", nodes)
        copy(cursor, "trie_groups", "group_no, root, room_no, size, digest", rows)

    def _put(self, node: int, level: int, change: Iterable[tuple[int, int | None]]) -> int:
        children = list(self._nodes[node])
        if not level:
            for slot, event in change:
                children[slot % _WIDTH] = event or 0
        else:
            parts: dict[int, list[tuple[int, int | None]]] = {}
            for slot, event in change:
                parts.setdefault(slot >> _BITS * level & _WIDTH - 1, []).append((slot, event))
            for at, part in parts.items():
                children[at] = self._put(children[at], level - 1, part)
        if not any(children):
            return 0
        self._count += 1
        made = self._room << 40 | self._count
        self._nodes[made] = self._fresh[made] = tuple(children)
        return made

    def state_at(self, cursor: Cursor, group: int) -> State:
        """See :class:`.shape.Shape`. One statement per level."""
        ((root,),) = self._roots_of(cursor, [group])
        return self._entries(cursor, {root: 0}, _DEPTH - 1)

    def _entries(self, cursor: Cursor, nodes: dict[int, int], level: int) -> State:
        """All entries below some nodes, which are given with their first slots."""
        for at in range(level, 0, -1):
            below = {}
            for node, children in self._read(cursor, nodes).items():
                for nth, child in enumerate(children):
                    if child:
                        below[child] = nodes[node] + (nth << _BITS * at)
            nodes = below
        return {
            nodes[node] + nth: event
            for node, children in self._read(cursor, nodes).items()
            for nth, event in enumerate(children)
            if event
        }

    def entries_at(
        self, cursor: Cursor, groups: Sequence[int], slots: Sequence[int]
    ) -> dict[tuple[int, int], int]:
        """See :class:`.shape.Shape`."""
        joins, node = [], "at.root"
        for level in range(_DEPTH - 1, -1, -1):
            joins.append(f"JOIN trie_nodes n{level} ON n{level}.node_no = {node}")
            node = f"n{level}.children[(key.slot >> {_BITS * level} & {_WIDTH - 1}) + 1]"
        cursor.execute(
            f"SELECT at.group_no, key.slot, {node} FROM trie_groups at"
            f" CROSS JOIN unnest(%s::int[]) AS key (slot) {' '.join(joins)}"
            " WHERE at.group_no = ANY(%s)",
            (list(slots), list(groups)),
        )
        return {(group, slot): event for group, slot, event in cursor if event}

    def difference(self, cursor: Cursor, old: int, new: int) -> dict[int, int | None]:
        """See :class:`.shape.Shape`. Subtrees that are the same node are not read."""
        roots = dict(
            zip((old, new), (root for (root,) in self._roots_of(cursor, [old, new])), strict=True)
        )
        pairs = [(roots[old], roots[new], 0)]
        for level in range(_DEPTH - 1, -1, -1):
            known = self._read(
                cursor, {each for one, two, _ in pairs for each in (one, two) if each}
            )
            pairs = [
                (before, after, first + (nth << _BITS * level))
                for one, two, first in pairs
                for nth, (before, after) in enumerate(
                    zip(known.get(one, _EMPTY), known.get(two, _EMPTY), strict=True)
                )
                if before != after
            ]
        return {slot: after or None for _, after, slot in pairs}

    def purge(self, connection: Connection, low: int, high: int) -> Purged:
        """See :class:`.shape.Shape`. Nodes that no group reaches any more are found by marking those that are."""
        running = TimedTransactions(connection)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                """
                WITH RECURSIVE live (node_no, level) AS (
                    SELECT root, 3 FROM trie_groups
                    WHERE room_no = %(room)s AND NOT group_no BETWEEN %(low)s AND %(high)s
                    UNION
                    SELECT child, level - 1
                    FROM live JOIN trie_nodes USING (node_no), unnest(children) AS child
                    WHERE level > 0 AND child <> 0
                )
                SELECT node_no FROM trie_nodes
                WHERE room_no = %(room)s
                EXCEPT SELECT node_no FROM live
                """,
                {"room": self._room, "low": low, "high": high},
            )
            gone = [node for (node,) in cursor]
        step = (high - low) // 8 + 1
        for first in range(low, high + 1, step):
            running.run(
                lambda cursor, first=first: cursor.execute(
                    "DELETE FROM trie_groups WHERE room_no = %s AND group_no BETWEEN %s AND %s",
                    (self._room, first, min(first + step - 1, high)),
                )
            )
        for part in slices(gone, 2000):
            running.run(
                lambda cursor, part=part: cursor.execute(
                    "DELETE FROM trie_nodes WHERE node_no = ANY(%s)", (part,)
                )
            )
        return running.done()

    def _roots_of(self, cursor: Cursor, groups: Sequence[int]) -> list[tuple[int]]:
        cursor.execute(
            "SELECT root FROM unnest(%s) WITH ORDINALITY AS asked (group_no, nth)"
            " JOIN trie_groups USING (group_no) ORDER BY nth",
            (list(groups),),
        )
        return cursor.fetchall()  # type: ignore[no-any-return]

    def _read(self, cursor: Cursor, nodes: Iterable[int]) -> dict[int, Sequence[int]]:
        cursor.execute(
            "SELECT node_no, children FROM trie_nodes WHERE node_no = ANY(%s)", (list(nodes),)
        )
        return dict(cursor.fetchall())
