"""Compares a room of which a part was purged with what is kept of the same room in memory."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from itertools import count
from typing import Any, TypeVar

from simulator.rooms.kept_outliers import kept_outliers, staying_events
from simulator.rooms.watched_transaction import WatchedTransaction
from synrepl.rooms import Room
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.rooms.maintenance.line_rebuild import differing_groups
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.states.state_groups import (
    packed_changes,
    read_chains,
    read_states,
    state_in,
)
from synrepl.storage.rooms.tables.events import events_by_id, raw_json
from synrepl.storage.rooms.tables.heads import current_state, forward_extremities, read_heads
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import require_room
from tests.rooms.dags import Dag
from tests.storage.rooms.store_case import StoreCase

T = TypeVar("T")


class Killed(Exception):
    """The process ends here."""


class KilledDatabase:
    """A database whose transactions fail from a statement on.

    :ivar statements: how many were run
    """

    def __init__(self, database: Database, last: int) -> None:
        self._database = database
        self._last = last
        self.statements = 0

    def count(self, sql: str) -> None:
        """Count a statement."""
        self.statements += 1
        if self.statements > self._last:
            raise Killed

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run work in a transaction that may fail."""
        return await self._database.run(
            name,
            lambda txn: work(WatchedTransaction(txn, self.count)),
            read_only=read_only,
            isolation=isolation,
        )


_WRITES = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM) synrepl\.|SELECT synrepl\.append")


class WritesKilled:
    """A database whose transactions fail once before each statement that writes.

    :param seen: where they failed: name of the transaction, place of the statement
    """

    def __init__(self, database: Database, seen: set[tuple[str, int]]) -> None:
        self._database = database
        self._seen = seen

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run work in a transaction that may fail."""
        kind = re.sub(" of !.*", "", name)

        def killed(txn: Transaction) -> T:
            numbers = count(1)

            def before(sql: str) -> None:
                place = kind, next(numbers)
                if _WRITES.match(sql) and place not in self._seen:
                    self._seen.add(place)
                    raise Killed

            return work(WatchedTransaction(txn, before))

        return await self._database.run(name, killed, read_only=read_only, isolation=isolation)


class IntrudingDatabase:
    """A database in which something else happens once, just before a transaction.

    :param before: how the name of the transaction begins
    """

    def __init__(
        self, database: Database, before: str, intrude: Callable[[], Awaitable[object]]
    ) -> None:
        self._database = database
        self._before = before
        self._intrude: Callable[[], Awaitable[object]] | None = intrude

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run the work, after something else if it is its turn."""
        if name.startswith(self._before) and self._intrude is not None:
            intrude, self._intrude = self._intrude, None
            await intrude()
        return await self._database.run(name, work, read_only=read_only, isolation=isolation)


class MaintainedCase(StoreCase):
    """A test case with rooms that are maintained."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.maintenance = RoomMaintenance(self.database)

    async def persist(self, room_dag: Dag, first: int = 0, last: int = 1 << 30) -> None:
        """Persist some of a room's events."""
        live = room_dag.soft_failures
        events = room_dag.events[first:last]
        for at in range(0, len(events), 50):
            await self.one.persist(
                events[0].room_id,
                room_dag.version,
                [IncomingEvent(each, live) for each in events[at : at + 50]],
            )

    async def kill_everywhere(
        self,
        work: Callable[[RoomMaintenance], Awaitable[object]],
        check: Callable[[], Awaitable[object]],
    ) -> set[str]:
        """Run an operation again and again, killed before each of its writes once, until it is not killed any more.

        :param check: what holds whenever it was killed
        :returns: names of the transactions that were killed
        """
        seen: set[tuple[str, int]] = set()
        while True:
            try:
                await work(RoomMaintenance(WritesKilled(self.database, seen)))
            except Killed:
                await check()
            else:
                return {name for name, _ in seen}

    async def spoil(self, room_id: str) -> None:
        """Store a fifth of the groups in full."""

        def work(txn: Transaction) -> None:
            room = require_room(txn, room_id)
            txn.execute("SELECT group_no FROM synrepl._state_groups ORDER BY group_no")
            groups = [int(group) for (group,) in txn.fetchall()]
            known = read_chains(txn, room.room_no, groups)
            for group in groups[::5]:
                state = state_in(group, known)
                txn.execute(
                    "UPDATE synrepl._state_groups SET prev_group = NULL, changes = %s"
                    " WHERE group_no = %s",
                    (packed_changes(room.room_no, state), group),
                )

        await self.database.run("spoil groups", work)

    def in_memory(self, room_dag: Dag, last: int = 1 << 30) -> Room:
        """The same events in memory."""
        room = Room(room_dag.version)
        for event in room_dag.events[:last]:
            room.receive(event, room_dag.soft_failures)
        return room

    def full_events(self, room: Room, point: PurgePoint) -> set[str]:
        """The events that keep their states."""
        full = {each.event.event_id for each in room if each.state_before is not None}
        staying = staying_events(room, full)
        return {one for one in full if room[one].topological >= point.bound or one in staying}

    async def redactions(self, room: Room) -> dict[str, str]:
        """Which redaction applies to which event, as stored."""

        def read(txn: Transaction) -> dict[str, str]:
            txn.execute(
                "SELECT e.event_id, r.event_id FROM synrepl._room_events e"
                " JOIN synrepl._room_events r ON r.event_no = e.redacted_by"
            )
            return dict(txn.fetchall())

        return await self.read(read)

    async def outliers(
        self, room: Room, full: Collection[str], redacted_by: dict[str, str]
    ) -> set[str]:
        """The events that are kept because others cite them or have them in their states."""
        return await self.read(lambda txn: kept_outliers(txn, room, full, redacted_by))

    async def check_kept(
        self, room: Room, full: Collection[str], outliers: Collection[str], what: object = None
    ) -> None:
        """A stored room has exactly these events, with the verdicts and states of the one in memory."""
        await self.read(lambda txn: self._compare_kept(txn, room, full, outliers, what))

    def _compare_kept(
        self,
        txn: Transaction,
        room: Room,
        full: Collection[str],
        outliers: Collection[str],
        what: object,
    ) -> None:
        row = require_room(txn, room.room_id or "")
        txn.execute("SELECT event_id FROM synrepl._room_events WHERE room_no = %s", (row.room_no,))
        self.assertEqual({each for (each,) in txn.fetchall()}, {*full, *outliers}, what)
        rows = events_by_id(txn, [*full, *outliers])
        for event_id, raw in raw_json(txn, rows.values()).items():
            self.assertEqual(raw, room[event_id].event.raw, what)
        txn.execute("SELECT count(*) FROM synrepl._room_event_json")
        self.assertEqual(txn.fetchone()[0], len(rows), what)
        groups: dict[int, dict[Any, str]] = {}
        for event_id, stored in rows.items():
            expected = room[event_id]
            self.assertEqual(stored.is_outlier, event_id not in full, (what, event_id))
            self.assertEqual(stored.is_rejected, not expected.accepted, (what, event_id))
            if event_id in full:
                assert expected.state_before is not None
                assert expected.state_after is not None
                assert stored.group_before is not None
                assert stored.group_after is not None
                self.assertEqual(stored.passed_all_checks, expected.passed_all_checks, what)
                groups[stored.group_before] = expected.state_before.as_dict()
                groups[stored.group_after] = expected.state_after.as_dict()
                self.assertEqual(stored.topological, expected.topological, what)
        for group, state in read_states(txn, row, groups).items():
            self.assertEqual(state, groups[group], (what, group))
        self.assertEqual(list(differing_groups(txn, row)), [], what)
        current = {each.key: each.event_id for each in current_state(txn, row.room_no)}
        self.assertEqual(current, room.current_state().as_dict(), what)
        ends = set(forward_extremities(txn, row.room_no).values())
        self.assertEqual(ends, room.forward_extremities, what)
        heads = read_heads(txn, row.room_no)
        assert heads is not None
        self.assertEqual((heads.events, heads.outliers), (len(full), len(outliers)), what)
        self._compare_kept_edges(txn, room, row.room_no, set(full), what)
        txn.execute(
            "SELECT m.user_id, e.event_id FROM synrepl._memberships m"
            " JOIN synrepl._room_events e USING (event_no) WHERE m.room_no = %s",
            (row.room_no,),
        )
        members = {key[1]: each for key, each in current.items() if key[0] == "m.room.member"}
        self.assertEqual(dict(txn.fetchall()), members, what)

    def _compare_kept_edges(
        self, txn: Transaction, room: Room, room_no: int, full: set[str], what: object
    ) -> None:
        txn.execute(
            "SELECT e.event_id, ARRAY(SELECT p.event_id FROM synrepl._room_events p"
            "  WHERE p.event_no = ANY (e.prev_nos)), cardinality(e.prev_nos),"
            " ARRAY(SELECT b.missing_id FROM synrepl._backward_extremities b"
            "  WHERE b.room_no = e.room_no AND b.child_no = e.event_no)"
            " FROM synrepl._room_events e WHERE e.room_no = %s",
            (room_no,),
        )
        for event_id, prev_ids, prev_count, missing in txn.fetchall():
            cited = set(room[event_id].event.prev_event_ids) if event_id in full else set()
            self.assertEqual(set(prev_ids), cited & full, (what, event_id))
            self.assertEqual(prev_count, len(cited & full), (what, event_id))
            self.assertEqual(set(missing), cited - full, (what, event_id))

    async def verified(self, room_id: str) -> list[tuple[str, str, str]]:
        """What verification finds."""
        found = RoomVerification(self.database).findings(room_id)
        return [(each.problem.value, each.subject, each.detail) async for each in found]
