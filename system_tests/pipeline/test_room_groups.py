"""The jobs ``state-groups`` and ``compaction``, with real Spark, over the tables of real Synapses."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
from pyspark.sql import Row
from twisted.trial.unittest import TestCase

from synrepl.pipeline.rooms import compaction, state_groups
from synrepl.pipeline.rooms.groups.applying import apply_compaction
from synrepl.pipeline.rooms.groups.checks import GroupFinding
from synrepl.pipeline.rooms.groups.plan import MAX_HOPS
from synrepl.pipeline.rooms.groups.stream import GroupsArePacked
from synrepl.pipeline.rooms.reading.open import open_rooms
from synrepl.storage.foreign.rooms.compacted import GroupsChanged
from system_tests.pipeline.spark_fixture import shared_session
from tests.rooms.test_real_rooms import FORKED, KNOWN
from tests.storage.foreign_rooms import room_database, rooms_of
from tests.storage.large_room import insert_large_room
from tests.storage.rooms.store_case import StoreCase

RELEASE = "1.163.2"


def findings(dsn: str) -> list[Row]:
    """The findings of a database, without the groups that nothing needs."""
    with open_rooms(shared_session(), dsn) as frames:
        rows = state_groups.check_groups(frames).collect()
    return [row for row in rows if row.finding != GroupFinding.UNREFERENCED]


def compacted(dsn: str, **options: int) -> dict[int, Row]:
    """The rows of a compaction, by group."""
    with open_rooms(shared_session(), dsn) as frames:
        rows = compaction.compact_groups(frames, **options).collect()
    return {row.state_group: row for row in rows}


def statement(dsn: str, sql: str, *parameters: Any) -> Any:
    """Run a statement; the rows that it returns."""
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else None


class GroupsOfRealServers(TestCase):
    async def test_nothing_is_named_in_the_groups_of_the_current_release(self) -> None:
        self.assertEqual(findings(await room_database(RELEASE, self)), [])

    async def test_a_state_that_another_server_reported_wrongly_is_named_where_it_is_followed(
        self,
    ) -> None:
        (found,) = findings(await room_database("1.43.0", self))
        self.assertEqual(found.finding, GroupFinding.WRONG_STATE)
        self.assertIn(found.event_id[:6], KNOWN["1.43.0"].split())
        self.assertEqual((found.type, found.state_key), ("m.room.join_rules", ""))


class CorruptedGroups(TestCase):
    """One thing is changed in a copy of a server's tables; just that is named."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.rooms = [each for each in rooms_of(RELEASE) if len(each.rows) > 20][:2]
        self.dsn = await room_database(RELEASE, self, self.rooms)

    def only(self) -> Row:
        (found,) = findings(self.dsn)
        return found

    def group_with_child(self) -> tuple[int, int]:
        """A group that an event has, and a group that builds on it."""
        return tuple(
            statement(
                self.dsn,
                "SELECT d.prev_state_group, d.state_group FROM state_group_edges d"
                " JOIN state_groups g ON g.id = d.state_group"
                " JOIN event_to_state_groups e ON e.state_group = d.state_group"
                " WHERE g.room_id = %s AND NOT EXISTS (SELECT FROM state_group_edges above"
                " WHERE above.prev_state_group = d.state_group) ORDER BY 2 LIMIT 1",
                self.rooms[0].room_id,
            )[0]
        )

    def test_rows_of_two_groups_that_were_swapped_are_named(self) -> None:
        one, two = statement(
            self.dsn,
            "SELECT min(s.state_group), max(s.state_group) FROM state_groups_state s"
            " JOIN event_to_state_groups e USING (state_group) WHERE s.room_id = %s"
            " AND s.type = 'm.room.member' GROUP BY s.state_key"
            " HAVING count(DISTINCT s.event_id) > 1 ORDER BY 1 LIMIT 1",
            self.rooms[0].room_id,
        )[0]
        key = statement(
            self.dsn,
            "SELECT state_key FROM state_groups_state WHERE state_group = %s"
            " AND type = 'm.room.member'",
            one,
        )[0][0]
        swap = (
            "UPDATE state_groups_state s SET event_id = (SELECT o.event_id FROM state_groups_state o"
            " WHERE o.type = s.type AND o.state_key = s.state_key AND o.state_group <> s.state_group"
            " AND o.state_group = ANY(%s)) WHERE s.state_group = ANY(%s) AND s.type = 'm.room.member'"
            " AND s.state_key = %s"
        )
        statement(self.dsn, swap, [one, two], [one, two], key)
        found = findings(self.dsn)
        self.assertEqual({row.finding for row in found}, {GroupFinding.WRONG_STATE})
        self.assertEqual({row.state_group for row in found}, {one, two})
        self.assertEqual({row.state_key for row in found}, {key})

    def test_an_entry_of_another_key_is_named(self) -> None:
        _, group = self.group_with_child()
        other = statement(
            self.dsn,
            "SELECT event_id FROM state_groups_state WHERE room_id = %s AND type = 'm.room.create'",
            self.rooms[0].room_id,
        )[0][0]
        statement(
            self.dsn,
            "UPDATE state_groups_state SET event_id = %s WHERE state_group = %s",
            other,
            group,
        )
        found = findings(self.dsn)
        self.assertEqual(
            {row.finding for row in found},
            {GroupFinding.ENTRY_OF_ANOTHER_KEY, GroupFinding.WRONG_STATE},
        )
        self.assertEqual({(row.state_group, row.stored) for row in found}, {(group, other)})

    def test_a_base_of_another_room_is_named(self) -> None:
        _, group = self.group_with_child()
        foreign = statement(
            self.dsn,
            "SELECT max(id) FROM state_groups WHERE room_id = %s",
            self.rooms[1].room_id,
        )[0][0]
        statement(
            self.dsn,
            "UPDATE state_group_edges SET prev_state_group = %s WHERE state_group = %s",
            foreign,
            group,
        )
        found = self.only()
        self.assertEqual(found.finding, GroupFinding.BASE_OF_ANOTHER_ROOM)
        self.assertEqual((found.room_id, found.state_group), (self.rooms[0].room_id, group))
        problem = compacted(self.dsn)[group]
        self.assertEqual((problem.problem, problem.changed), ("no base", False))

    def test_an_event_with_a_group_of_another_room_is_named(self) -> None:
        foreign = statement(
            self.dsn,
            "SELECT max(id) FROM state_groups WHERE room_id = %s",
            self.rooms[1].room_id,
        )[0][0]
        event_id = statement(
            self.dsn,
            "SELECT e.event_id FROM events e WHERE room_id = %s AND NOT EXISTS"
            " (SELECT FROM event_edges d WHERE d.prev_event_id = e.event_id) LIMIT 1",
            self.rooms[0].room_id,
        )[0][0]
        statement(
            self.dsn,
            "UPDATE event_to_state_groups SET state_group = %s WHERE event_id = %s",
            foreign,
            event_id,
        )
        found = self.only()
        self.assertEqual(found.finding, GroupFinding.EVENT_OF_ANOTHER_ROOM)
        self.assertEqual((found.event_id, found.state_group), (event_id, foreign))

    def test_a_missing_base_and_what_builds_on_it_are_named(self) -> None:
        base, group = self.group_with_child()
        statement(self.dsn, "DELETE FROM state_groups WHERE id = %s", base)
        found = {(row.state_group, row.finding) for row in findings(self.dsn)}
        self.assertIn((group, GroupFinding.NO_BASE), found)
        self.assertIn((base, GroupFinding.NO_GROUP), found)

    def test_a_group_with_two_bases_is_named(self) -> None:
        base, group = self.group_with_child()
        statement(self.dsn, "INSERT INTO state_group_edges VALUES (%s, %s)", group, base - 1)
        found = self.only()
        self.assertEqual((found.finding, found.state_group), (GroupFinding.SEVERAL_BASES, group))
        self.assertEqual(compacted(self.dsn)[group].problem, "several bases")

    def test_a_cycle_is_named(self) -> None:
        base, group = self.group_with_child()
        statement(
            self.dsn,
            "UPDATE state_group_edges SET prev_state_group = %s WHERE state_group = %s",
            group,
            base,
        )
        found = {row.state_group: row.finding for row in findings(self.dsn)}
        self.assertEqual(found[base], found[group])
        self.assertEqual(found[base], GroupFinding.CYCLE)
        self.assertLessEqual(set(found.values()), {GroupFinding.CYCLE, GroupFinding.BROKEN_BASE})

    def test_a_group_that_nothing_needs_is_named_with_its_cost(self) -> None:
        _, group = self.group_with_child()
        statement(self.dsn, "DELETE FROM event_to_state_groups WHERE state_group = %s", group)
        with open_rooms(shared_session(), self.dsn) as frames:
            rows = state_groups.check_groups(frames).collect()
        found = [row for row in rows if row.state_group == group]
        self.assertEqual([row.finding for row in found], [GroupFinding.UNREFERENCED])
        self.assertGreater(found[0].bytes, 100)


class CompactedGroups(TestCase):
    async def test_a_large_room_is_compacted_and_every_state_is_the_same(self) -> None:
        rooms = [each for each in rooms_of("1.43.0") if not each.room_id.startswith(FORKED)]
        dsn = await room_database("1.43.0", self, rooms[:3])
        insert_large_room(dsn, keys=400, changes=1_600)
        planned = compacted(dsn, max_hops=40)
        before = sum(row.rows_before for row in planned.values())
        after = sum(row.rows_after for row in planned.values())
        self.assertLess(after, before * 0.6)
        self.assertEqual(statement(dsn, "SELECT count(*) FROM state_groups_state"), [(before,)])
        with open_rooms(shared_session(), dsn) as frames:
            applied = apply_compaction(compaction.compact_groups(frames, max_hops=40), dsn)
        self.assertEqual(applied, sum(row.changed for row in planned.values()))
        self.assertEqual(statement(dsn, "SELECT count(*) FROM state_groups_state"), [(after,)])
        again = compacted(dsn)
        for group, row in planned.items():
            self.assertEqual(again[group].digest_before, row.digest_before)
            self.assertEqual(again[group].size, row.size)
            self.assertEqual(again[group].stored_prev, row.prev_state_group)
        self.assertEqual(findings(dsn), [])
        longest = statement(
            dsn,
            "WITH RECURSIVE chain (id, hops) AS (SELECT id, 0 FROM state_groups UNION ALL"
            " SELECT d.prev_state_group, hops + 1 FROM chain JOIN state_group_edges d"
            " ON d.state_group = id) SELECT max(hops) FROM chain",
        )[0][0]
        self.assertEqual(longest, max(row.hops or 0 for row in planned.values()))
        self.assertLessEqual(longest, 40)

    async def test_rows_that_no_longer_fit_are_refused(self) -> None:
        dsn = await room_database("1.43.0", self, rooms_of("1.43.0")[:1])
        insert_large_room(dsn, keys=150, changes=300)
        with open_rooms(shared_session(), dsn) as frames:
            rows = compaction.compact_groups(frames).where("changed").collect()
        statement(
            dsn,
            "DELETE FROM state_groups_state WHERE ctid = (SELECT ctid FROM state_groups_state"
            " WHERE state_group = %s LIMIT 1)",
            rows[0].state_group,
        )
        stored = statement(dsn, "SELECT count(*) FROM state_groups_state")
        kept = shared_session().createDataFrame(rows, compaction.COMPACTION.schema)
        with self.assertRaises(GroupsChanged) as caught:
            apply_compaction(kept, dsn)
        self.assertIn(str(rows[0].state_group), str(caught.exception))
        self.assertEqual(statement(dsn, "SELECT count(*) FROM state_groups_state"), stored)

    async def test_a_room_where_nothing_is_saved_stays_as_it_is(self) -> None:
        planned = compacted(await room_database(RELEASE, self))
        self.assertFalse(any(row.changed for row in planned.values()))
        self.assertLessEqual(max(row.hops or 0 for row in planned.values()), MAX_HOPS)


class OwnGroups(StoreCase):
    async def test_groups_that_are_packed_already_are_refused(self) -> None:
        with (
            open_rooms(shared_session(), self.dsn) as frames,
            self.assertRaises(GroupsArePacked),
        ):
            compaction.compact_groups(frames)
