"""The rooms of the test vectors: through the store as through memory."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from simulator.rooms.comparison import compare_room
from synrepl.rooms import Room
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from tests.rooms.dags import Dag, dag, dag_names
from tests.storage.rooms.store_case import StoreCase
from tests.storage.rooms.stored_rooms import STORED_ROOMS, StoredRoomsCase, memory_room

#: Larger rooms take too long for every run.
LARGEST = int(os.environ.get("SYNREPL_LARGEST_DAG", "300"))

SMALL = 60

#: Rooms that arrive event by event at a process that has just started: one of each kind of event ID and of
#: state resolution, and all of them where larger rooms are asked for.
EVENT_BY_EVENT = (
    "dags/v1_mixed_30.jsonl.gz",
    "dags/v10_mixed_30.jsonl.gz",
    "dags/v12_mixed_30.jsonl.gz",
    "dags/v3_war_60.jsonl.gz",
)


class DagsInOneBatch(StoredRoomsCase):
    """Each room of the vectors."""

    async def test_rooms_in_one_batch(self) -> None:
        names = dag_names(LARGEST)
        stored = await STORED_ROOMS.store(names)
        for name in names:
            expected = memory_room(name)
            judged = [event_id for each in expected.judged for event_id in each]
            self.assertEqual(stored[name], judged, name)
            await self.database.run(
                "compare",
                lambda txn, name=name, room=expected.room: compare_room(txn, room, name),  # type: ignore[misc]
            )


class DagsInBatches(StoreCase):
    """Each of the smaller rooms of the vectors."""

    timeout = 900

    async def persist(self, room_dag: Dag, sizes: Sequence[int], restart: bool) -> list[str]:
        """Persist a room.

        :param sizes: of batches, in turn
        :returns: the IDs of events in the order in which they were judged
        """
        live = room_dag.soft_failures
        incoming = [IncomingEvent(each, live) for each in room_dag.events]
        room_id = room_dag.events[0].room_id
        judged: list[str] = []
        at = number = 0
        while at < len(incoming):
            part = incoming[at : at + sizes[number % len(sizes)]]
            done = await self.one.persist(room_id, room_dag.version, part)
            judged += [each.event_id for each in done.judged]
            at, number = at + len(part), number + 1
            if restart:
                self.one.forget()
        return judged

    async def check_as_in_memory(self, name: str, sizes: Sequence[int], restart: bool) -> None:
        """A room whose events arrive in the order of the file."""
        expected = memory_room(name)
        judged = await self.persist(dag(name), sizes, restart)
        self.assertEqual(judged, [each for part in expected.judged for each in part], name)
        await self.check_equal(expected.room, name)

    async def test_rooms_in_small_batches(self) -> None:
        for name in dag_names(SMALL):
            await self.check_as_in_memory(name, [7], restart=False)

    async def test_rooms_event_by_event_with_nothing_in_memory(self) -> None:
        for name in EVENT_BY_EVENT if LARGEST <= 300 else dag_names(SMALL):
            await self.check_as_in_memory(name, [1], restart=True)

    async def test_rooms_in_any_order_of_arrival(self) -> None:
        rng = random.Random(3)
        for name in dag_names(SMALL):
            room_dag = dag(name)
            lines = list(room_dag.lines)
            rng.shuffle(lines)
            mixed = room_dag._replace(lines=lines)
            room = Room(mixed.version)
            expected = [
                each.event.event_id
                for event in mixed.events
                for each in room.receive(event, mixed.soft_failures)
            ]
            judged = await self.persist(mixed, [11], restart=rng.random() < 0.5)
            self.assertEqual(judged, expected, name)
            await self.check_equal(room, name)

    async def test_what_is_persisted_again_stays_as_it_is(self) -> None:
        name = dag_names(SMALL)[0]
        room_dag = dag(name)
        await self.persist(room_dag, [20], restart=True)
        tables = ["_room_events", "_state_groups", "_state_line", "events", "backfill", "caches"]
        count = " + ".join(f"(SELECT count(*) FROM synrepl.{each})" for each in tables)
        before = self.sql(f"SELECT {count} + (SELECT revision FROM synrepl._rooms)")
        done = await self.one.persist(room_dag.events[0].room_id, room_dag.version, room_dag.events)
        self.assertEqual({each.outcome for each in done.events}, {EventOutcome.KNOWN})
        self.assertEqual(done.judged, [])
        self.assertEqual(
            self.sql(f"SELECT {count} + (SELECT revision FROM synrepl._rooms)"), before
        )
        await self.check_equal(memory_room(name).room)
