"""Fixtures: rooms of the vectors in a store that is read."""

from __future__ import annotations

from simulator.rooms.server import ImmediateDatabase
from synrepl.driver.blocking import BlockingDatabase
from synrepl.rooms import Room
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.rooms.dags import Dag, dag, dag_names
from tests.storage.rooms.store_case import StoreCase
from tests.storage.rooms.stored_rooms import StoredRoomsCase

#: Rooms that are small enough for every run.
SMALL = 60


class ReadingCase(StoreCase):
    """A test case with a store."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.store = RoomStore(self.database)

    async def persist(self, room_dag: Dag) -> Room:
        """Put a room of the vectors into the store and into memory."""
        room = Room(room_dag.version)
        live = room_dag.soft_failures
        for event in room_dag.events:
            room.receive(event, live)
        incoming = [IncomingEvent(each, live) for each in room_dag.events]
        await self.one.persist(room_dag.events[0].room_id, room_dag.version, incoming)
        return room

    async def any_room(self) -> Room:
        """The largest of the small rooms of the vectors."""
        return await self.persist(dag(largest_room()))


class SharedReadingCase(StoredRoomsCase):
    """A test case with a store that has rooms of the vectors, and that it does not change.

    It reads in the thread of the test, which is faster.
    """

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        blocking = BlockingDatabase(self.dsn, "store")
        self.addCleanup(blocking.close)
        self.store = RoomStore(ImmediateDatabase(blocking))

    async def any_room(self) -> Room:
        """The largest of the small rooms of the vectors."""
        return await self.stored_room(largest_room())


def largest_room() -> str:
    """The name of the largest of the small rooms."""
    return max(dag_names(SMALL), key=lambda each: len(dag(each).events))
