"""Unreferenced state groups are collected, and compaction leaves every state as it is."""

from __future__ import annotations

from typing import Any
from unittest import TestCase
from unittest.mock import patch

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.core.errors import StorageError
from synrepl.rooms import Room
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance import proven_states
from synrepl.storage.rooms.maintenance.compact import GroupTotals, group_totals
from synrepl.storage.rooms.maintenance.index_check import (
    IndexesNotChecked,
    checked_indexes,
)
from synrepl.storage.rooms.maintenance.marks import ReworkedMeanwhile, lock_marked, mark_room
from synrepl.storage.rooms.maintenance.rebase import delta_to
from synrepl.storage.rooms.states.state_groups import (
    GROUPS_TABLE,
    LEVELS,
    chain_of,
    group_row,
    read_chains,
    state_in,
)
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import require_room, take_numbers
from synrepl.storage.rooms.tables.pending_rows import copy_rows
from tests.rooms.dags import dag, dag_names
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.kept_rooms import MaintainedCase

reactor: Any = _reactor


class GroupsCase(MaintainedCase):
    """A test case with groups that are not as they should be."""

    timeout = 600

    async def stored(self, size: int = 60, number: int = 0) -> Room:
        room_dag = dag(dag_names(size)[number])
        await self.persist(room_dag)
        return self.in_memory(room_dag)

    async def add_garbage(self, room_id: str, count: int) -> None:
        """Copies of groups, each stored in full, that nothing refers to."""

        def work(txn: Transaction) -> None:
            room = require_room(txn, room_id)
            txn.execute(
                "SELECT group_no FROM synrepl._state_groups WHERE room_no = %s"
                " ORDER BY size DESC, group_no LIMIT %s",
                (room.room_no, count),
            )
            groups = [int(group) for (group,) in txn.fetchall()]
            known = read_chains(txn, room.room_no, groups)
            numbers = take_numbers(txn, 0, count)[1]
            rows = []
            for group, number in zip(groups, numbers, strict=False):
                state = state_in(group, known)
                full = known[group]._replace(
                    group_no=number,
                    prev_group=None,
                    place=0,
                    changes=state,
                )
                rows.append(group_row(full))
            copy_rows(txn, GROUPS_TABLE, rows)

        await self.database.run("make garbage", work)

    async def copy_a_state(self, room_id: str) -> None:
        """Store a state twice more: in full, and as a delta to that, which an event has."""

        def copy_twice(txn: Transaction) -> None:
            room_no = require_room(txn, room_id).room_no
            txn.execute(
                "SELECT g.group_no FROM synrepl._state_groups g JOIN synrepl._room_events e"
                "  ON e.group_before = g.group_no ORDER BY g.place DESC LIMIT 1"
            )
            high = int(txn.fetchone()[0])
            known = read_chains(txn, room_no, [high])
            self.assertGreater(known[high].place, 0)
            full, delta = take_numbers(txn, 0, 2)[1]
            copy = known[high]._replace(group_no=full, prev_group=None, place=0)
            copy = copy._replace(changes=state_in(high, known))
            step = copy._replace(group_no=delta, prev_group=full, place=1, changes={})
            copy_rows(txn, GROUPS_TABLE, [group_row(copy), group_row(step)])
            txn.execute(
                "UPDATE synrepl._room_events SET group_before = %s WHERE event_no ="
                " (SELECT max(event_no) FROM synrepl._room_events WHERE group_before = %s)",
                (delta, high),
            )

        await self.database.run("copy a state", copy_twice)

    async def totals(self, room_id: str) -> GroupTotals:
        """The size of a room's groups."""
        return await self.read(lambda txn: group_totals(txn, require_room(txn, room_id).room_no))


class Collecting(GroupsCase):
    """Groups that nothing refers to."""

    async def test_groups_that_nothing_refers_to_go_and_the_others_stay(self) -> None:
        room = await self.stored()
        room_id = room.room_id or ""
        await self.maintenance.collect(room_id, index_check=False)
        before = self.sql("SELECT count(*) FROM synrepl._state_groups")
        await self.add_garbage(room_id, 7)
        report = await self.maintenance.collect(room_id, index_check=False)
        self.assertEqual((report.rows, report.leftovers), (7, 0))
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._state_groups"), before)
        await self.check_equal(room)

    async def test_steps_between_groups_go_when_they_are_rebased(self) -> None:
        room = await self.stored(number=1)
        room_id = room.room_id or ""
        await self.maintenance.collect(room_id, index_check=False)
        before = self.sql("SELECT count(*) FROM synrepl._state_groups")
        report = await self.maintenance.collect(room_id, index_check=False, rebase=True)
        self.assertLessEqual(self.sql("SELECT count(*) FROM synrepl._state_groups"), before)
        self.assertEqual(report.leftovers, 0)
        await self.check_equal(room)
        self.assertEqual(await self.verified(room_id), [])

    async def test_a_collection_that_is_killed_anywhere_is_gone_on_with(self) -> None:
        room = await self.stored(number=1)
        room_id = room.room_id or ""
        await self.add_garbage(room_id, 3)
        no_lines = set(await self.verified(room_id))

        async def check() -> None:
            self.assertLessEqual(set(await self.verified(room_id)), no_lines)

        killed = await self.kill_everywhere(
            lambda to: to.collect(room_id, index_check=False, rebase=True), check
        )
        self.assertIn("remove state groups", killed)
        await self.check_equal(room)

    async def test_all_indexes_that_lead_to_references_are_to_be_checked(self) -> None:
        indexes = await self.read(checked_indexes)
        for each in "_rooms_key", "_state_lines_room", "_room_events_outliers":
            self.assertIn(f"synrepl.{each}", indexes)

    async def test_without_an_index_check_nothing_is_removed_unless_it_is_waived(self) -> None:
        room = await self.stored()
        room_id = room.room_id or ""
        await self.add_garbage(room_id, 2)
        before = self.sql("SELECT count(*) FROM synrepl._state_groups")
        self.sql(
            "CREATE ROLE keeper LOGIN PASSWORD 'keeper' IN ROLE pg_read_all_data, pg_write_all_data"
        )
        self.addCleanup(self.sql, "DROP OWNED BY keeper; DROP ROLE keeper")
        address = self.dsn.rpartition("@")[2]
        database = PostgresDatabase(reactor, f"postgresql://keeper:keeper@{address}", "keeper")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        maintenance = RoomMaintenance(database)
        with self.assertRaisesRegex(IndexesNotChecked, "--without-index-check"):
            await maintenance.collect(room_id)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._state_groups"), before)

    async def test_a_damaged_group_stops_the_collection(self) -> None:
        room = await self.stored(number=2)
        await self.maintenance.collect(room.room_id or "", index_check=False)
        await self.spoil(room.room_id or "")
        self.sql("UPDATE synrepl._state_groups SET size = size + 1")
        before = self.sql("SELECT count(*) FROM synrepl._state_groups")
        with self.assertRaises(StorageError):
            await self.maintenance.compact(room.room_id or "", index_check=False)
            await self.maintenance.collect(room.room_id or "", index_check=False, rebase=True)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._state_groups"), before)


class Deltas(TestCase):
    """How a group is stored on top of another one."""

    def test_a_delta_says_what_is_new_what_changed_and_what_was_removed(self) -> None:
        below = {1: 10, 2: 20, 3: 30}
        made = delta_to(7, 5, {1: 10, 2: 21, 4: 40}, 6, below)
        self.assertEqual((made.prev_group, made.place), (6, 5))
        self.assertEqual(made.changes, {2: 21, 3: None, 4: 40})


class RebuildingLines(GroupsCase):
    """Lines that are built again while other maintenance is under way."""

    async def test_what_other_maintenance_found_out_before_is_void(self) -> None:
        room = await self.stored()
        room_id = room.room_id or ""
        room_no = (await self.maintenance.room(room_id)).room_no
        taken = await self.read(lambda txn: mark_room(txn, room_no))
        rebuilt = await self.maintenance.rebuild_lines(room_id)
        self.assertEqual(rebuilt.groups, self.sql("SELECT count(*) FROM synrepl._state_groups"))
        with self.assertRaises(ReworkedMeanwhile):
            await self.read(lambda txn: lock_marked(txn, taken.mark))
        await self.check_equal(room)


class Compacting(GroupsCase):
    """Rooms of the vectors, compacted."""

    async def test_every_state_stays_and_rows_only_get_fewer(self) -> None:
        for number in range(len(dag_names(60))):
            room = await self.stored(number=number)
            room_id = room.room_id or ""
            await self.spoil(room_id)
            rows: list[int] = []
            report = await self.maintenance.compact(
                room_id,
                index_check=False,
                progress=lambda _, rows=rows: rows.append(  # type: ignore[misc]
                    self.sql("SELECT count(*) FROM synrepl._state_groups")
                ),
            )
            self.assertEqual(rows, sorted(rows, reverse=True))
            self.assertLess(report.after.entries, report.before.entries)
            self.assertLessEqual(report.after.groups, report.before.groups)
            await self.check_equal(room, number)
            self.assertEqual(await self.verified(room_id), [])
            await self.empty()

    async def test_a_compaction_that_is_killed_anywhere_is_gone_on_with(self) -> None:
        room = await self.stored(number=3)
        room_id = room.room_id or ""
        await self.spoil(room_id)
        await self.copy_a_state(room_id)
        totals = [await self.totals(room_id)]
        no_lines = set(await self.verified(room_id))

        async def check() -> None:
            self.assertLessEqual(set(await self.verified(room_id)), no_lines)
            totals.append(await self.totals(room_id))
            self.assertLessEqual(totals[-1].groups, totals[-2].groups)

        killed = await self.kill_everywhere(
            lambda to: to.compact(room_id, index_check=False), check
        )
        self.assertLessEqual({"merge state groups", "rewrite state groups"}, killed)
        await self.check_equal(room)

    async def test_deltas_stay_above_what_they_are_deltas_to_when_groups_are_merged(self) -> None:
        room = await self.stored()
        room_id = room.room_id or ""

        await self.copy_a_state(room_id)
        before = self.sql("SELECT count(*) FROM synrepl._state_groups")
        await self.maintenance.compact(room_id, index_check=False)
        self.assertLessEqual(self.sql("SELECT count(*) FROM synrepl._state_groups"), before - 2)
        await self.check_equal(room)
        self.assertEqual(await self.verified(room_id), [])

    async def test_large_groups_become_deltas_and_chains_stay_short(self) -> None:
        room = await self.long_room(400, 60)
        room_id = room.room_id or ""
        before = await self.totals(room_id)
        await self.maintenance.compact(room_id, index_check=False)
        # Some of the first groups are deltas to a group that is as large as they are.
        unspoilt = await self.totals(room_id)
        self.assertGreater(unspoilt.entries, 0.95 * before.entries)
        await self.spoil(room_id)
        with patch.object(proven_states, "MAX_ROWS", 5):
            await self.maintenance.compact(room_id, index_check=False)
        after = await self.totals(room_id)
        self.assertEqual(after.groups, before.groups)
        self.assertLess(after.entries, 1.2 * before.entries)

        def longest_chain(txn: Transaction) -> int:
            txn.execute("SELECT group_no FROM synrepl._state_groups")
            groups = [int(group) for (group,) in txn.fetchall()]
            known = read_chains(txn, require_room(txn, room_id).room_no, groups)
            return max(len(list(chain_of(group, known))) for group in groups)

        self.assertLessEqual(await self.read(longest_chain), LEVELS.max_hops)
        await self.check_equal(room)
        self.assertEqual(await self.verified(room_id), [])

    async def long_room(self, count: int, keys: int) -> Room:
        """A room without forks in which one of some keys changes after the other."""
        small = SmallRoom()
        events = [*small.base]
        for number in range(count):
            cites = [small.create, small.alice, small.levels]
            key = str(number % keys)
            events.append(small.event("com.example.key", {}, events[-1:], cites, key=key))
        room = Room(small.version)
        for event in events:
            room.receive(event)
        await self.one.persist(
            small.create.room_id, small.version, [IncomingEvent(each) for each in events]
        )
        return room

    async def test_events_go_on_after_a_compaction(self) -> None:
        for number in range(len(dag_names(60))):
            room_dag = dag(dag_names(60)[number])
            half = len(room_dag.events) // 2
            await self.persist(room_dag, 0, half)
            room_id = room_dag.events[0].room_id
            await self.maintenance.compact(room_id, index_check=False)
            await self.persist(room_dag, half)
            await self.check_equal(self.in_memory(room_dag), number)
            await self.empty()
