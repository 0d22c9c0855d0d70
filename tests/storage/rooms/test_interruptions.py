"""Everything that changes rooms, interrupted at each statement and commit: it goes on, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, ClassVar

from twisted.internet.defer import Deferred, gatherResults

from simulator.rooms.comparison import compare_room
from simulator.rooms.random_rooms import USERS, RandomRoom, RestlessRoom
from simulator.rooms.room_model import receive
from simulator.rooms.server import ImmediateDatabase, result_of
from synrepl.rooms import Room, room_version
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedBatch
from synrepl.storage.tables import ensure_tables
from tests.storage.rooms.blocking_store import BlockingPersister, InjectedFailure, RecordedFacts
from tests.storage.rooms.interrupted_database import InterruptedDatabase, Interruptions
from tests.storage.rooms.store_case import PersistingProcess, StoreCase
from tests.storage.rooms.test_maintained_machine import MaintainedMachine
from tests.storage.rooms.test_visibility import RoomCase

#: Seeds and versions of rooms that are maintained: one in every run, and more where more examples are asked for.
ROOMS = [(5, "10")]
if "SYNREPL_ROOM_EXAMPLES" in os.environ:
    ROOMS += [(3, "1"), (8, "12"), *((seed, "11") for seed in range(100, 120))]


class InterruptedMachine(MaintainedMachine):
    """Maintains a room with an interruption at each statement.

    :cvar counts: of interruptions of each operation
    """

    counts: ClassVar[list[int]]

    def maintain(
        self, work: Callable[[RoomMaintenance], Coroutine[Any, Any, object]], fail_at: int | None
    ) -> None:
        """Run an operation until it is interrupted nowhere any more, and once more."""
        database = self.processes[0].database
        interruptions = Interruptions()
        while True:
            try:
                result_of(work(RoomMaintenance(InterruptedDatabase(database, interruptions))))
                break
            except InjectedFailure:
                # To verify takes longer than most operations.
                if len(interruptions.places) % 5 == 0:
                    self.verify()
        self.counts.append(len(interruptions.places))
        result_of(work(RoomMaintenance(ImmediateDatabase(database))))

    def arrive(self, rng: Random) -> None:
        """Events come from everywhere: shuffled, as history, as outliers, with states."""
        for number in range(4):
            self.make_events(8)
            if number == 1:
                self.outliers_arrive(rng.randrange(99), 3, 0)
            if number == 2 and not self.gone:
                self.an_event_arrives_with_its_state(rng.randrange(99), 1, False)
            self.events_arrive(
                rng.randrange(99),
                12,
                number % 2 == 1,
                number % 2,
                True,
                number == 3,
                None,
                number == 2,
            )


class MaintenanceInterrupted(RoomCase):
    """Each operation on rooms."""

    timeout = 600

    def test_each_operation_goes_on_wherever_it_is_interrupted(self) -> None:
        streams = RecordedFacts()
        processes = [BlockingPersister(self.dsn, name, streams) for name in ("one", "two")]
        for process in processes:
            self.addCleanup(process.database.close)
        self.database.run("tables", lambda txn: ensure_tables(txn, ROOM_STREAMS))

        class Machine(InterruptedMachine):
            """With this database."""

        Machine.dsn, Machine.processes, Machine.streams = self.dsn, processes, streams
        Machine.case, Machine.counts = self, []
        rng = Random(7)
        for seed, version in ROOMS:
            machine = Machine()
            machine.begin(seed, version)
            machine.arrive(rng)
            machine.states_are_compacted(1)
            machine.history_is_purged(6, seed % 2 == 0, 1)
            machine.history_comes_back(seed, 3, 1, True)
            machine.arrive(rng)
            machine.groups_are_collected(True, 1)
            machine.a_user_is_erased(USERS[1], 1)
            machine.the_room_is_forgotten_and_comes_again(1, True)
        self.assertGreater(min(Machine.counts), 8, Machine.counts)
        self.assertGreater(max(Machine.counts), 40, Machine.counts)


class PersistingInterrupted(StoreCase):
    """Batches, each with a failure at each statement, or an answer that is lost."""

    timeout = 600

    def test_a_batch_goes_in_once_wherever_it_is_interrupted(self) -> None:
        streams = RecordedFacts()
        processes = [BlockingPersister(self.dsn, name, streams) for name in ("three", "four")]
        for process in processes:
            self.addCleanup(process.database.close)
        rng = Random(11)
        made = RestlessRoom(rng, "11")
        events = [*made.events, *made.more(70)]
        room = Room(made.version)
        while events:
            chosen = rng.sample(events[:16], min(10, len(events)))
            events = [each for each in events if each not in chosen]
            part = [
                IncomingEvent(each, backfilled=rng.random() < 0.2, outlier=rng.random() < 0.1)
                for each in chosen
            ]
            count, fail_at = 0, 1
            while True:
                process = processes[fail_at % 2]
                try:
                    process.persist(made.room_id, made.version, part, fail_at, answer_is_lost=True)
                    break
                except InjectedFailure:
                    count, fail_at = count + 1, fail_at + 1
            self.assertGreater(count, 4)
            judged = [each for one in part for each in receive(room, one)]
            before = self.sql("SELECT array_agg(h)::text FROM synrepl._room_heads h")
            # Nobody has heard of the commit, so the batch is given again, to both.
            for process in processes:
                done = process.persist(made.room_id, made.version, part)
                assert done is not None
                self.assertEqual(done.judged, [])
            self.assertEqual(
                self.sql("SELECT array_agg(h)::text FROM synrepl._room_heads h"), before
            )
            self.assertLessEqual(set(judged), {each.event.event_id for each in room})
            if room.room_id is not None:
                processes[0].database.run(
                    "compare",
                    lambda txn: compare_room(txn, room, orders=False),
                )


class PersistersAtOnce(StoreCase):
    """Two processes with memories of their own."""

    async def test_the_room_is_that_of_the_order_in_which_they_committed(self) -> None:
        two = await self.start_process("two")
        rng = Random(13)
        for version in ("6", "12"):
            made = RandomRoom(rng, version)
            await self.one.persist(made.room_id, room_version(version), made.events)
            room = Room(made.version)
            for event in made.events:
                room.receive(event)
            for _ in range(5):
                events = made.more(36)
                rng.shuffle(events)
                parts = [events[at : at + 6] for at in range(0, len(events), 6)]
                batches = [
                    [
                        IncomingEvent(each, rng.random() < 0.8, outlier=rng.random() < 0.1)
                        for each in part
                    ]
                    for part in parts
                ]
                done: list[PersistedBatch] = await gatherResults(
                    [
                        Deferred.fromCoroutine(self.give((self.one, two)[number % 2], made, batch))
                        for number, batch in enumerate(batches)
                    ]
                )
                # A batch in which nothing new came has the revision of the one before.
                in_order = sorted(
                    zip(done, batches, strict=True),
                    key=lambda each: (each[0].revision, not each[0].judged),
                )
                for found, batch in in_order:
                    judged = [one for each in batch for one in receive(room, each)]
                    self.assertEqual([each.event_id for each in found.judged], judged)
                if rng.random() < 0.5:
                    two.forget()
            await self.check_equal(room, version)
            await self.empty()
            two.forget()

    @staticmethod
    async def give(
        process: PersistingProcess, made: RandomRoom, batch: list[IncomingEvent]
    ) -> PersistedBatch:
        return await process.persist(made.room_id, made.version, batch)
