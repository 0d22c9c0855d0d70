"""The rooms of the test vectors: through the store as through memory."""

from __future__ import annotations

import os
import random

from synrepl.rooms import Room
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from tests.rooms.dags import Dag, dag, dag_names
from tests.storage.rooms.store_case import StoreCase

#: Larger rooms take too long for every run.
LARGEST = int(os.environ.get("SYNREPL_LARGEST_DAG", "300"))


class StoredDags(StoreCase):
    """Each room of the vectors, in batches."""

    timeout = 900

    async def persist(self, room_dag: Dag, size: int, restart: bool) -> Room:
        room = Room(room_dag.version)
        live = room_dag.soft_failures
        events = room_dag.events
        room_id = events[0].room_id
        for at in range(0, len(events), size):
            part = events[at : at + size]
            judged = [each for event in part for each in room.receive(event, live)]
            done = await self.one.persist(
                room_id, room_dag.version, [IncomingEvent(each, live) for each in part]
            )
            self.assertEqual(
                [each.event_id for each in done.judged],
                [each.event.event_id for each in judged],
                room_dag.name,
            )
            if restart:
                self.one.forget()
        return room

    async def test_rooms_in_one_batch(self) -> None:
        for name in dag_names(LARGEST):
            room_dag = dag(name)
            await self.check_equal(await self.persist(room_dag, 1_000, restart=False), name)
            await self.empty()

    async def test_rooms_in_small_batches(self) -> None:
        for name in dag_names(60):
            room_dag = dag(name)
            await self.check_equal(await self.persist(room_dag, 7, restart=False), name)
            await self.empty()

    async def test_rooms_event_by_event_with_nothing_in_memory(self) -> None:
        for name in dag_names(60):
            room_dag = dag(name)
            await self.check_equal(await self.persist(room_dag, 1, restart=True), name)
            await self.empty()

    async def test_rooms_in_any_order_of_arrival(self) -> None:
        rng = random.Random(3)
        for name in dag_names(60):
            room_dag = dag(name)
            lines = list(room_dag.lines)
            rng.shuffle(lines)
            mixed = room_dag._replace(lines=lines)
            await self.check_equal(await self.persist(mixed, 11, restart=rng.random() < 0.5), name)
            await self.empty()

    async def test_what_is_persisted_again_stays_as_it_is(self) -> None:
        room_dag = dag(dag_names(60)[0])
        room = await self.persist(room_dag, 20, restart=True)
        tables = ["_room_events", "_state_groups", "_state_line", "events", "backfill", "caches"]
        count = " + ".join(f"(SELECT count(*) FROM synrepl.{each})" for each in tables)
        before = self.sql(f"SELECT {count} + (SELECT revision FROM synrepl._rooms)")
        done = await self.one.persist(room_dag.events[0].room_id, room_dag.version, room_dag.events)
        self.assertEqual({each.outcome for each in done.events}, {EventOutcome.KNOWN})
        self.assertEqual(done.judged, [])
        self.assertEqual(
            self.sql(f"SELECT {count} + (SELECT revision FROM synrepl._rooms)"), before
        )
        await self.check_equal(room)
