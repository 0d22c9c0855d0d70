"""The rooms of the vectors, persisted and judged in memory once in a test process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from synrepl.rooms import Room
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.tables import ensure_tables
from tests.rooms.dags import dag
from tests.storage.postgres import PREPARED, PostgresCase, Process
from tests.storage.rooms.store_case import PersistingProcess


class MemoryRoom(NamedTuple):
    """A room of the vectors in memory.

    :ivar room: the room
    :ivar judged: with each event that came, those that were judged
    """

    room: Room
    judged: list[list[str]]


@cache
def memory_room(name: str) -> MemoryRoom:
    """A room of the vectors whose events came in the order of the file. It must not be changed."""
    room_dag = dag(name)
    room = Room(room_dag.version)
    judged = []
    for event in room_dag.events:
        found = room.receive(event, room_dag.soft_failures)
        judged.append([each.event.event_id for each in found])
    return MemoryRoom(room, judged)


class StoredRooms:
    """A database with rooms of the vectors, each persisted in one batch when a test first asks for it.

    Tests only read it.
    """

    def __init__(self) -> None:
        self._dsn: str | None = None
        self._stored: dict[str, list[str]] = {}

    async def dsn(self) -> str:
        """The database."""
        if self._dsn is None:
            self._dsn = await PREPARED.copy()
        return self._dsn

    async def store(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Make sure that rooms are stored.

        :returns: of each, the IDs of the events in the order in which they were judged
        """
        names = list(names)
        missing = [each for each in names if each not in self._stored]
        if missing:
            process = Process(await self.dsn(), "vectors")
            try:
                await process.database.run("tables", lambda txn: ensure_tables(txn, ROOM_STREAMS))
                persisting = PersistingProcess(process)
                await persisting.writer.start()
                for name in missing:
                    self._stored[name] = await _persist(persisting, name)
                await persisting.writer.stop()
            finally:
                await process.close()
        return {each: self._stored[each] for each in names}


async def _persist(process: PersistingProcess, name: str) -> list[str]:
    room_dag = dag(name)
    incoming = [IncomingEvent(each, room_dag.soft_failures) for each in room_dag.events]
    done = await process.persist(room_dag.events[0].room_id, room_dag.version, incoming)
    return [each.event_id for each in done.judged]


STORED_ROOMS = StoredRooms()


class StoredRoomsCase(PostgresCase):
    """A test case that reads :data:`STORED_ROOMS`."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        self.dsn = await STORED_ROOMS.dsn()
        self.database = self.process("reader").database

    async def stored_room(self, name: str) -> Room:
        """A room of the vectors that is stored, in memory."""
        await STORED_ROOMS.store([name])
        return memory_room(name).room
