"""Cutting rooms into parts, and the tasks of ``state-at-every-event`` over databases of real Synapses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from random import Random
from typing import Any, cast
from unittest import TestCase as PlainTestCase

import psycopg2
import pyarrow as pa
from twisted.trial.unittest import TestCase

from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.rooms.lookup import LookupSource
from synrepl.pipeline.rooms.parts.cutting import TaskSizes, cut_room, packed_parts
from synrepl.pipeline.rooms.parts.source import JudgedRoom, PartSource, RoomPart
from synrepl.pipeline.rooms.parts.tasks import PartTasks, read_ahead
from synrepl.pipeline.rooms.parts.view import StateCorrection
from synrepl.pipeline.rooms.reading.database_lookup import DatabaseLookup
from synrepl.pipeline.rooms.state_at_every_event import DIGEST_KEY, StateTask, state_rows
from synrepl.pipeline.rooms.tables import ROOM_ORDER
from synrepl.storage.rooms.states.state_digest import digest_of
from tests.pipeline.rooms_in_process import run_in_process
from tests.rooms.test_real_rooms import replayed
from tests.storage.foreign_rooms import room_database, rooms_of


class Cuts(PlainTestCase):
    def test_are_exactly_where_all_later_events_follow_one(self) -> None:
        for seed in range(60):
            rng = Random(seed)
            count = rng.randrange(1, 40)
            width = rng.choice([1, 2, 5])
            parents = [
                rng.sample(range(max(0, at - width), at), rng.randint(1, min(width, at)))
                if at and rng.random() < 0.95
                else []
                for at in range(count)
            ]
            # Stream orderings are in another order than the topological one, and may be negative.
            streams = rng.sample(range(-50, 100), count)
            has_group = [rng.random() < 0.9 for _ in range(count)]
            rows = [
                {
                    "topological_ordering": at,
                    "stream_ordering": streams[at],
                    "prev_stream_ordering": None if parent is None else streams[parent],
                    "has_state_group": has_group[at],
                }
                for at, here in enumerate(parents)
                for parent in (*here,) or (None,)
            ]
            rng.shuffle(rows)
            order = pa.Table.from_pylist(rows, ROOM_ORDER.arrow)
            parts = cut_room(7, order, 1).to_pylist()
            found = [part["topological"] for part in parts[1:]]
            self.assertEqual(
                [part["stream"] for part in parts],
                [streams[part["topological"]] for part in parts],
            )
            wanted = [
                at
                for at in range(1, count)
                if has_group[at - 1]
                and all(parent >= at - 1 for each in range(at, count) for parent in parents[each])
            ]
            self.assertEqual(found, wanted, seed)
            self.assertEqual(sum(part["events"] for part in parts), count)
            self.assertEqual({part["room"] for part in parts}, {7})


class Sizes(PlainTestCase):
    def test_each_core_has_several_tasks_and_each_task_several_parts(self) -> None:
        for events, cores, part, task in (
            (100, 2, 5_000, 5_000),
            (90_000, 1, 11_250, 90_000),
            (90_000, 2, 5_625, 22_500),
            (500_000, 2, 15_625, 125_000),
            (500_000, 1, 15_625, 125_000),
            (10_000_000, 8, 19_532, 156_250),
        ):
            rooms = [JudgedRoom("1", "!r", "10", events // 2, 3)] * 2
            self.assertEqual(TaskSizes.of(rooms, 20_000, cores), (part, task), events)

    def test_no_part_is_larger_than_asked_for(self) -> None:
        rooms = [JudgedRoom("1", "!r", "10", 500_000, 0)]
        self.assertEqual(TaskSizes.of(rooms, 300, 2), (300, 125_000))

    def test_tasks_have_every_part_once_and_in_order(self) -> None:
        rng = Random(1)
        for _ in range(100):
            size = rng.randint(1, 50)
            parts = [
                RoomPart(number, JudgedRoom("1", "!r", None, 0, 0), None, None, rng.randrange(60))
                for number in range(rng.randrange(20))
            ]
            bins = packed_parts(parts, size)
            self.assertEqual([part for some in bins for part in some], parts)
            for some in bins:
                if len(some) > 1 and some[0].events:
                    full = sum(part.events for part in some)
                    self.assertLessEqual(full - some[-1].events / 2, size)
            for some, following in pairwise(bins):
                events = sum(part.events for part in some)
                self.assertGreater(events + following[0].events / 2, size)

    def test_tasks_of_equal_parts_have_as_many_although_parts_end_late(self) -> None:
        room = JudgedRoom("1", "!r", None, 0, 0)
        parts = [RoomPart(number, room, None, None, 5_630) for number in range(16)]
        self.assertEqual([len(some) for some in packed_parts(parts, 45_000)], [8, 8])


class ReadingAhead(PlainTestCase):
    def test_reads_at_most_one_more_than_is_worked_on(self) -> None:
        read: list[int] = []

        def items() -> Iterator[int]:
            for item in range(1, 20):
                read.append(item)
                yield item

        found = []
        for item in read_ahead(items()):
            found.append(item)
            self.assertLessEqual(len(read), item + 1)
        self.assertEqual(found, list(range(1, 20)))

    def test_reads_the_next_one_while_one_is_worked_on(self) -> None:
        is_read = threading.Event()

        def items() -> Iterator[int]:
            yield 1
            is_read.set()
            yield 2

        with closing(read_ahead(items())) as ahead:
            next(ahead)
            self.assertTrue(is_read.wait(60))

    def test_raises_what_reading_raised_after_what_was_read(self) -> None:
        def items() -> Iterator[int]:
            yield 1
            raise KeyError("lost")

        ahead = read_ahead(items())
        self.assertEqual(next(ahead), 1)
        with self.assertRaises(KeyError):
            next(ahead)

    def test_ends_its_thread_when_it_is_closed(self) -> None:
        before = threading.active_count()
        ahead = read_ahead(iter([1, 2, 3]))
        self.assertEqual(next(ahead), 1)
        self.assertEqual(threading.active_count(), before + 1)
        ahead.close()
        self.assertEqual(threading.active_count(), before)


class Collections(PlainTestCase):
    def test_are_off_in_a_task_alone(self) -> None:
        seen: list[bool] = []

        class Source:
            def parts(
                self, parts: Sequence[RoomPart], *, verified: bool
            ) -> Iterator[tuple[RoomPart, pa.Table]]:
                yield parts[0], pa.table({})

        def work(part: RoomPart, table: pa.Table) -> Iterator[pa.RecordBatch]:
            seen.append(gc.isenabled())
            yield from ()
            raise KeyError("lost")

        part = RoomPart(0, JudgedRoom("1", "!r", "10", 1, 0), None, None, 1)
        source = cast("PartSource", Source())
        numbers = iter([pa.RecordBatch.from_pydict({"id": [0]})])
        with self.assertRaises(KeyError):
            list(PartTasks(source, [[part]], work).rows(numbers))
        self.assertEqual(seen, [False])
        self.assertTrue(gc.isenabled())


class Chains(TestCase):
    timeout = 300

    async def test_end_at_known_groups_and_in_circles(self) -> None:
        first, *_ = rooms_of("1.163.2")
        dsn = await room_database("1.163.2", self, [first])
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "SELECT d.state_group, d.prev_state_group, e.prev_state_group"
                " FROM state_group_edges d JOIN state_group_edges e"
                " ON e.state_group = d.prev_state_group ORDER BY 1 LIMIT 1"
            )
            group, prev, oldest = cursor.fetchone() or (0, 0, 0)
            self.assertGreater(group, 0)
            with held_snapshot(dsn, "rooms") as snapshot:
                lookup = DatabaseLookup(dsn, snapshot.name, False).open()
                whole = lookup.chains(first.room_id, [group], [])
                self.assertLessEqual({group, prev, oldest}, whole.keys())
                self.assertEqual(whole[group].prev, prev)
                some = lookup.chains(first.room_id, [group], [oldest])
                self.assertEqual(some.keys(), {group, prev})
            cursor.execute(
                "UPDATE state_group_edges SET prev_state_group = %s WHERE state_group = %s",
                (group, prev),
            )
            connection.commit()
            with held_snapshot(dsn, "rooms") as snapshot:
                lookup = DatabaseLookup(dsn, snapshot.name, False).open()
                self.assertEqual(lookup.chains(first.room_id, [group], []).keys(), {group, prev})


class States(TestCase):
    timeout = 300

    def rows(self, dsn: str, task: dict[str, Any], size: int) -> list[dict[str, Any]]:
        def work(lookup: LookupSource, part: RoomPart, table: pa.Table) -> Any:
            return state_rows(StateTask(lookup, **task), part, table)

        return run_in_process(dsn, work, size)

    def check(self, version: str, rows: list[dict[str, Any]]) -> None:
        digests = {row["event_id"]: row["digest"] for row in rows}
        for recorded in rooms_of(version):
            room = replayed(recorded)
            for row in recorded.rows:
                if not row["outlier"]:
                    state = room[row["event_id"]].state_after
                    assert state is not None
                    wanted = digest_of(DIGEST_KEY, state.as_dict().items())
                    self.assertEqual(digests.pop(row["event_id"]), wanted, row["event_id"])
        self.assertEqual(digests, {})

    async def test_are_those_that_follow_from_the_events(self) -> None:
        for version in ("1.43.0", "1.163.2"):
            dsn = await room_database(version, None)
            for size in (1_000, 40):
                rows = self.rows(dsn, {}, size)
                self.check(version, rows)

    async def test_are_right_once_what_parts_found_wrong_is_corrected(self) -> None:
        version = "1.163.2"
        dsn = await room_database(version, self)
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "DELETE FROM state_groups_state WHERE type = 'm.room.power_levels'"
                " AND state_group % 3 = 0"
            )
            self.assertGreater(cursor.rowcount, 3)
        known: dict[str, list[StateCorrection]] = {}
        for _ in range(20):
            rows = self.rows(dsn, {"corrections": known}, 3)
            found = [
                (
                    row["room_id"],
                    StateCorrection(
                        row["topological_ordering"],
                        (at["type"], at["state_key"]),
                        at["stored"],
                        at["computed"],
                    ),
                )
                for row in rows
                for at in row["corrected"] or ()
            ]
            if not found:
                break
            for room_id, correction in found:
                known.setdefault(room_id, []).append(correction)
                known[room_id].sort(key=lambda each: each.topological)
        self.assertGreater(len(known), 0)
        self.check(version, rows)
