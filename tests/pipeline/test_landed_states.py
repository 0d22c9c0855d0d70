"""The states after whole events, as they leave synrepl's own database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pyarrow as pa

from simulator.rooms.random_rooms import USERS, RandomRoom
from synrepl.core.tokens import Range
from synrepl.pipeline.rooms.states_in_lake import LANDED_STATES, room_states
from synrepl.pipeline.source.database.landed_states import BASE, CHANGED_CELLS
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.rooms import StateKey
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.states.state_groups import read_states
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import room_by_number
from tests.pipeline.test_whole_events import STREAM, WholeEventsCase

State = Mapping[StateKey, str]


class LandedStatesCase(WholeEventsCase):
    """A database with random rooms, whose states are put together from rows alone."""

    async def made(self, seed: int, count: int = 120, *, backfilled: bool = False) -> RandomRoom:
        """A stored room with forks."""
        made = RandomRoom(Random(seed), "10", f"states{seed}")
        made.more(count)
        events = [IncomingEvent(e, live=not backfilled, backfilled=backfilled) for e in made.events]
        for start in range(0, count, 25):
            await self.one.persist(made.room_id, made.version, events[start : start + 25])
        self.source.refresh()
        return made

    async def stored_states(self) -> dict[str, State]:
        """The state after each event that has one, as the store gives it."""

        def work(txn: Transaction) -> dict[str, State]:
            txn.execute(
                "SELECT room_no, array_agg(event_id), array_agg(group_after)"
                " FROM synrepl._room_events WHERE stream_id IS NOT NULL GROUP BY room_no"
            )
            found: dict[str, State] = {}
            for room_no, ids, groups in txn.fetchall():
                states = read_states(txn, room_by_number(txn, room_no), set(groups))
                found |= {each: states[group] for each, group in zip(ids, groups, strict=True)}
            return found

        return await self.database.run("read states", work)

    def put_together(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The results of :func:`.room_states`, by event ID."""
        columns = self.source.stream_schema(STREAM).columns
        wanted = sorted(
            ({**row, "is_wanted": True} for row in rows if row["stored"]),
            key=lambda row: (row["room_id"], abs(row["stream_id"])),
        )
        schema = arrow_schema(columns).append(pa.field("is_wanted", pa.bool_()))
        batch = pa.RecordBatch.from_pylist(wanted, schema)
        # In small batches, as a long room comes.
        batches = (batch.slice(at, 7) for at in range(0, len(wanted), 7))
        found = [row for each in room_states(batches) for row in each.to_pylist()]
        self.assertEqual(len(found), len(wanted))
        return {row["event_id"]: row for row in found}

    def states(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, State]:
        """The states that rows say, which have to be known."""
        found = self.put_together(rows)
        self.assertEqual({row["problem"] for row in found.values()}, {None})
        return {each: as_state(row) for each, row in found.items()}


def _other_groups(some: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> int:
    """How many rows have another group in the second."""
    return sum(a["state_group"] != b["state_group"] for a, b in zip(some, others, strict=True))


def as_state(row: Mapping[str, Any]) -> State:
    """The state in a row of :data:`.LANDED_STATES`."""
    return {(each["type"], each["state_key"]): each["event_id"] for each in row["state"]}


class StatesOfRows(LandedStatesCase):
    async def test_are_those_of_the_store_in_rooms_with_forks(self) -> None:
        for seed in range(5):
            await self.made(seed)
        rows = self.rows()
        self.assertEqual(self.states(rows), await self.stored_states())
        # Of most events little is said, and some need more than themselves, because states were resolved.
        changes = [len(row[CHANGED_CELLS[0]]) for row in rows]
        self.assertLess(sum(changes) / len(changes), 2)
        self.assertGreater(max(changes), 1)
        self.assertEqual(sum(row[BASE] is None for row in rows), 5)

    async def test_are_those_of_history_that_was_fetched_later(self) -> None:
        await self.made(6, backfilled=True)
        rows = self.rows("room_backfill")
        self.assertEqual(self.states(rows), await self.stored_states())
        bases = [row[BASE] for row in rows]
        self.assertEqual(bases.count(None), 1)
        for row, base in zip(rows, bases, strict=True):
            self.assertTrue(base is None or row["stream_id"] < base < 0)

    async def test_are_the_same_after_groups_were_merged_and_history_was_purged(self) -> None:
        made = await self.made(7)
        states = await self.stored_states()
        # Every third event without an entry of its own gets a group that is equal to its own.
        self.sql(
            "INSERT INTO synrepl._state_groups SELECT group_no + 100000, prev_group, room_no, size,"
            " place, digest, changes FROM synrepl._state_groups"
        )
        self.sql(
            "UPDATE synrepl._room_events SET group_after = group_after + 100000,"
            " group_before = group_before + 100000"
            " WHERE stream_id % 3 = 1 AND slot IS NULL AND group_after = group_before"
        )
        before = self.rows()
        self.assertEqual(self.states(before), states)
        maintenance = RoomMaintenance(self.one.process.database)
        await maintenance.compact(made.room_id, index_check=False)
        merged = self.rows()
        self.assertGreater(_other_groups(before, merged), 10)
        self.assertEqual([row[BASE] for row in merged], [row[BASE] for row in before])
        self.assertEqual(self.states(merged), states)
        self.assertEqual(self.states([*before[:60], *merged[60:]]), states)
        at = sorted(row["stream_id"] for row in before)[60]
        await maintenance.purge(made.room_id, PurgePoint.of_stream(at), index_check=False)
        after = [row for row in self.rows() if row["stored"]]
        self.assertLess(len(after), len(before))
        left = {row["event_id"]: states[row["event_id"]] for row in after}
        self.assertEqual(self.states(after), left)
        # What landed before and what landed after go together.
        purged = {row["event_id"] for row in before} - left.keys()
        mixed = [row for row in before if row["event_id"] in purged or row["stream_id"] % 2] + [
            row for row in after if row["stream_id"] % 2 == 0
        ]
        self.assertEqual(self.states(mixed), states)

    async def test_do_not_build_on_facts_that_were_trimmed(self) -> None:
        await self.made(8)
        before = self.rows()
        at = before[50]["stream_id"]
        self.sql("UPDATE synrepl._streams SET trimmed = %s WHERE stream = 'events'", at)
        self.sql("DELETE FROM synrepl.events WHERE stream_id <= %s", at)
        rows = self.rows(after=at)
        self.assertEqual(len(rows), len(before) - 51)
        states = await self.stored_states()
        self.assertEqual(self.states(rows), {e["event_id"]: states[e["event_id"]] for e in rows})
        self.assertEqual([row["stream_id"] for row in rows if row[BASE] is None], [at + 1])

    async def test_do_not_build_on_what_was_judged_by_incomplete_state(self) -> None:
        await self.made(9)
        before = self.rows()
        at = before[50]["stream_id"]
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = %s", at)
        rows = self.rows()
        self.assertEqual(rows[:51], before[:51])
        states = await self.stored_states()
        self.assertEqual(
            self.states(rows[51:]), {e["event_id"]: states[e["event_id"]] for e in rows[51:]}
        )
        # An event that landed while the room was partial says nothing about those that are final.
        provisional = [{**row, "partial_state": row["stream_id"] <= at} for row in before]
        found = self.put_together(provisional)
        number = before[51][BASE]
        self.assertEqual(
            found[before[51]["event_id"]]["problem"],
            f"it builds on the state after position {number}, which was not final",
        )
        self.assertIsNone(found[before[50]["event_id"]]["problem"])

    async def test_of_a_room_that_is_partial_again_do_not_build_on_those_of_the_first_time(
        self,
    ) -> None:
        await self.made(20, backfilled=True)
        before = self.rows("room_backfill")
        at = before[50]["stream_id"]
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = 1")
        self.sql("UPDATE synrepl._room_events SET flags = flags | 8 WHERE stream_id < %s", at)
        rows = self.rows("room_backfill")
        self.assertEqual(rows[:51], before[:51])
        self.assertEqual([row["stream_id"] for row in rows[51:] if row[BASE] is None], [at - 1])
        states = await self.stored_states()
        # The first rows landed when the room was partial for the first time, with other states.
        other = [{**row, "partial_state": True, "state_size": -1} for row in rows[:51]]
        found = self.put_together([*other, *rows[51:]])
        for row in rows[51:]:
            each = found[row["event_id"]]
            self.assertEqual((each["problem"], as_state(each)), (None, states[row["event_id"]]))

    async def test_of_events_without_known_prev_events_build_on_the_newest_event(self) -> None:
        made = await self.made(10)
        before = self.rows()
        cut = before[80]
        self.sql(
            "UPDATE synrepl._room_events SET prev_nos = '{}' WHERE stream_id = %s",
            cut["stream_id"],
        )
        rows = self.rows()
        self.assertEqual(rows[80][BASE], before[79]["stream_id"])
        self.assertEqual(self.states(rows), await self.stored_states())
        self.assertEqual(len(rows), len(made.events))

    async def test_are_not_known_where_rows_are_missing(self) -> None:
        await self.made(11)
        rows = self.rows()
        lost = next(row for row in rows[20:] if row["type"] == "org.example.entry")
        rest = [row for row in rows if row is not lost]
        states = await self.stored_states()
        found = self.put_together(rest)
        unknown = {each: row for each, row in found.items() if row["problem"]}
        self.assertTrue(unknown)
        known = {each: as_state(row) for each, row in found.items() if not row["problem"]}
        self.assertEqual(known, {each: states[each] for each in known})
        self.assertIn(
            f"it builds on the state after position {lost['stream_id']}, which is not there",
            {row["problem"] for row in unknown.values()},
        )
        self.assertEqual({row["state"] for row in unknown.values()}, {None})
        # A state that is not as large as it was is not given.
        (size,) = (row["state_size"] for row in rows if row is lost)
        wrong = [{**row, "state_size": size + 9} if row is lost else row for row in rows]
        self.assertEqual(
            self.put_together(wrong)[lost["event_id"]]["problem"],
            f"it has {size} entries, and {size + 9} in the database",
        )

    async def test_are_there_without_the_entries_of_erased_users(self) -> None:
        await self.made(12)
        rows = self.rows()
        _, keys, _ = CHANGED_CELLS
        for row in rows:
            row[keys] = [None if each == USERS[1] else each for each in row[keys]]
        states = await self.stored_states()
        found = self.put_together(rows)
        self.assertEqual({row["problem"] for row in found.values()}, {None})
        for each, row in found.items():
            rest = {key: value for key, value in states[each].items() if key[1] != USERS[1]}
            self.assertEqual(as_state(row), rest)
            self.assertTrue(row["has_erased"] or rest == states[each])

    async def test_cost_nothing_where_they_are_not_asked_for(self) -> None:
        await self.made(13, 10)
        end = self.source.observe([STREAM])[STREAM].bound
        ranges = WriterRanges.between(PositionVector(), end)
        for columns, condition, is_read in (
            (["event_id", "json", "state_group"], "", False),
            (["event_id"], "state_size > 1", True),
            (["changed_types"], "", True),
        ):
            statement = self.source.scan(STREAM, ranges, columns, condition).template
            self.assertEqual("_state_groups" in statement, is_read)
        few = {row["event_id"] for row in self.rows() if row["state_size"] <= 2}
        found = self.rows(columns=["event_id"], condition="state_size <= 2")
        self.assertEqual({row["event_id"] for row in found}, few)


class PlansOfStates(LandedStatesCase):
    async def test_a_small_rooms_first_event_is_not_looked_for_among_those_of_a_large_one(
        self,
    ) -> None:
        await self.made(7)
        last = self.sql("SELECT max(stream_id) FROM synrepl._room_events")
        number = self.sql("SELECT event_no FROM synrepl._room_events WHERE stream_id = %s", last)
        end = last + 20_000
        others = {
            "event_no": "1000000 + g",
            "stream_id": "g",
            "event_id": "'$x' || g",
            "slot": "NULL",
            "group_before": "s.group_after",
            "room_no": "CASE WHEN mod(g, 500) = 0 THEN 100000 + g ELSE s.room_no END",
            "prev_nos": f"CASE WHEN mod(g, 500) = 0 THEN '{{}}' ELSE ARRAY[{number}] END::bigint[]",
        }
        columns = self.sql(
            "SELECT array_agg(column_name::text) FROM information_schema.columns"
            " WHERE table_schema = 'synrepl' AND table_name = '_room_events'"
        )
        values = ", ".join(others.get(name, f"s.{name}") for name in columns)
        self.sql(
            f"INSERT INTO synrepl._room_events ({', '.join(columns)}) SELECT {values}"
            " FROM synrepl._room_events s, generate_series(%s, %s) g WHERE s.event_no = %s",
            *(last + 1, end, number),
        )
        # As of a table that is 100 times as large, of whose small rooms hardly one is in the sample.
        self.sql("ALTER TABLE synrepl._room_events ALTER room_no SET (n_distinct = 2)")
        self.sql("ANALYZE synrepl._room_events")
        ranges = WriterRanges.between(PositionVector(), PositionVector({}, end))
        names = [column.name for column in self.source.stream_schema(STREAM).columns]
        statement = self.source.scan(STREAM, ranges, names, "").between(Range(end - 5000, end))
        plan = json.dumps(self.sql(f"EXPLAIN (FORMAT JSON) {statement}"))
        (index,) = re.findall(
            r'"Index Name": "(\w+)", "Relation Name": "_room_events", "Alias": "p_1"', plan
        )
        self.assertEqual(index, "_room_events_room_stream")


class Results(LandedStatesCase):
    async def test_have_their_columns_also_without_rows(self) -> None:
        (batch,) = room_states(iter(()))
        self.assertEqual((batch.schema, batch.num_rows), (LANDED_STATES, 0))
