"""Two writers of several rooms that are killed and take over each other's rooms, while the rooms are maintained."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from random import Random

from twisted.internet.defer import Deferred, gatherResults

from simulator.rooms.comparison import compare_room
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import SynreplError
from synrepl.core.semaphore import Semaphore
from synrepl.core.tokens import Range
from synrepl.rooms import Room
from synrepl.services.rooms.assignment import RoomAssignment
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.maintenance.marks import ReworkedMeanwhile
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.tables import ensure_tables
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from synrepl.streams.synapse.events import EVENTS, EventRow
from tests.rooms.dags import Dag, dag, dag_names
from tests.storage.postgres import PostgresCase, reactor
from tests.storage.rooms.store_case import PersistingProcess

EVERY = 1 << 40

SEEDS = range(int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "20")) // 10)


class WrittenDag:
    """A room of the vectors, and how much of it was persisted.

    :ivar is_stored: whether any of it was
    """

    def __init__(self, room_dag: Dag, rng: Random) -> None:
        self.room_id = room_dag.events[0].room_id
        self.version = room_dag.version
        self.model = Room(room_dag.version)
        self.is_stored = False
        self.left = [
            IncomingEvent(each, room_dag.soft_failures, rng.random() < 0.1)
            for each in room_dag.events
        ]
        # Nearly in order, so that some wait.
        for at in range(4, len(self.left) - 3, 9):
            self.left[at], self.left[at + 3] = self.left[at + 3], self.left[at]

    def next_batch(self, size: int) -> list[IncomingEvent]:
        """The next events, which the model gets, too."""
        batch, self.left = self.left[:size], self.left[size:]
        for each in batch:
            self.model.receive(each.event, each.live)
        return batch


class KilledWriters(PostgresCase):
    """The store equals the rooms in memory, and the streams tell of each event once."""

    timeout = 900

    async def start(self, name: str) -> PersistingProcess:
        """A process that persists. It takes the lease of one that was killed."""
        started = PersistingProcess(self.process(name))
        await started.writer.start()
        return started

    def kill(self, name: str) -> None:
        """End all connections of a process."""
        self.sql(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
            " WHERE application_name = %s",
            f"synrepl {name}",
            on=self.operator,
        )

    async def test_rooms_stay_whole_whatever_is_killed(self) -> None:
        self.operator = self.connect()
        self.maintainer = database = self.process("maintainer").database
        await database.run("tables", lambda txn: ensure_tables(txn, ROOM_STREAMS))
        names = dag_names(60)
        for seed in SEEDS:
            rng = Random(seed)
            rooms = [WrittenDag(dag(each), rng) for each in names[seed % 7 :: 7]]
            await self.run_seed(rng, rooms, f"a{seed}", f"b{seed}")
            for each in rooms:
                compare = partial(compare_room, room=each.model, what=seed, orders=False)
                await database.run("compare", compare)
        await self.check_streams()

    async def run_seed(self, rng: Random, rooms: list[WrittenDag], *names: str) -> None:
        """Persist all events of some rooms."""
        self.starting = Semaphore(TwistedScheduler(reactor), 1)
        self.processes = {each: await self.start(each) for each in names}
        writers = list(names)
        maintenance = RoomMaintenance(self.maintainer)
        while rooms_left := [each for each in rooms if each.left]:
            if rng.random() < 0.3:  # rooms move to the writers that are left, and back
                writers = rng.choice([[*names], [names[0]], [names[1]]])
            assignment = RoomAssignment(writers)
            calls = [
                self.give(
                    room, assignment.writer_of(room.room_id), room.next_batch(rng.randint(1, 15))
                )
                for room in rooms_left
            ]
            stored = [each for each in rooms if each.is_stored]
            if rng.random() < 0.4 and stored:
                calls.append(self.maintain(maintenance, rng.choice(stored), rng.random() < 0.5))
            under_way = gatherResults([Deferred.fromCoroutine(each) for each in calls])
            if rng.random() < 0.5:
                for _ in range(rng.randrange(6)):
                    await self.tick()
                self.kill(rng.choice(names))
            await under_way
        for each in self.processes.values():
            with contextlib.suppress(SynreplError):
                await each.writer.stop()
            await each.process.close()

    async def give(self, room: WrittenDag, name: str, batch: list[IncomingEvent]) -> None:
        """Give a batch to a writer, and to its next process when it was killed."""
        while True:
            process = self.processes[name]
            try:
                await process.persist(room.room_id, room.version, batch)
            except SynreplError:
                await self.restart(process, name)
            else:
                room.is_stored = True
                return

    async def restart(self, process: PersistingProcess, name: str) -> None:
        """Start a process again, with nothing in memory, unless that was done meanwhile."""
        async with self.starting:
            while self.processes[name] is process:
                with contextlib.suppress(SynreplError):
                    await process.writer.stop()
                await process.process.close()
                with contextlib.suppress(SynreplError):
                    self.processes[name] = await self.start(name)

    async def maintain(self, maintenance: RoomMaintenance, room: WrittenDag, compact: bool) -> None:
        """Compact or collect a room, whatever else is done to it."""
        with contextlib.suppress(ReworkedMeanwhile):
            if compact:
                await maintenance.compact(room.room_id, index_check=False)
            else:
                await maintenance.collect(room.room_id, index_check=False, rebase=True)

    async def check_streams(self) -> None:
        """A follower hears of each event once, with its stream ID."""
        store = self.process("follower").store
        told: list[tuple[str, int]] = []
        for stream, kind, sign in ((EVENTS, EventRow, 1), (BACKFILL, BackfillRow, -1)):
            page = await store.page(stream, Range(0, EVERY), None, 100_000)
            told += [
                (row.event_id, sign * fact.token)
                for fact in page.facts
                for row in fact.rows
                if isinstance(row, kind)
            ]
        stored = self.sql(
            "SELECT jsonb_object_agg(event_id, stream_id) FROM synrepl._room_events"
            " WHERE stream_id IS NOT NULL"
        )
        self.assertEqual(sorted(told), sorted(stored.items()))
