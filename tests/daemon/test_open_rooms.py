"""``open_rooms``: a program without a reactor reads the rooms in a database."""

from __future__ import annotations

import asyncio
from pathlib import Path

from synrepl.adapters.postgres.reading_database import OnlyRead
from synrepl.core.errors import ConfigError, SynreplError
from synrepl.daemon.open_rooms import WhichRooms, open_rooms
from synrepl.driver.dsn import BadDsn
from synrepl.storage.server_name import WrongServer
from synrepl.storage.store import DatabaseAway
from tests.rooms.built_rooms import BuiltRoom
from tests.storage.rooms.store_case import StoreCase


class OpeningRooms(StoreCase):
    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()  # type: ignore[misc]
        built = BuiltRoom("10")
        self.room_id = built.events[0].room_id
        await self.one.persist(self.room_id, built.events[0].version, built.events)
        self.count = len(built.events)

    def configuration(self, text: str) -> Path:
        path = Path(self.mktemp())
        path.write_text(text)
        return path

    def opened(self, dsn: str | None = None, config: Path | None = None) -> list[tuple[str, int]]:
        """The rooms that a program sees, and their events."""

        async def program() -> list[tuple[str, int]]:
            async with open_rooms(dsn, config=config) as rooms:
                return [(each.room_id, each.events) for each in await rooms.rooms()]

        return asyncio.run(program())

    def refused(self, dsn: str | None = None, config: Path | None = None) -> SynreplError:
        with self.assertRaises(SynreplError) as caught:
            self.opened(dsn, config)
        return caught.exception

    def test_by_dsn_and_by_configuration(self) -> None:
        config = self.configuration(f"server_name: example.org\ndatabase: {self.dsn}\n")
        for found in (self.opened(self.dsn), self.opened(config=config)):
            self.assertEqual(found, [(self.room_id, self.count)])

    def test_concurrent_reads_take_turns_and_a_lost_connection_is_replaced(self) -> None:
        async def program() -> list[int]:
            async with open_rooms(self.dsn) as rooms:
                found = await asyncio.gather(*(rooms.rooms() for _ in range(5)))
                self.sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'synrepl rooms' AND datname = current_database()"
                )
                return [len(each) for each in [*found, await rooms.rooms()]]

        self.assertEqual(asyncio.run(program()), [1] * 6)

    def test_what_cannot_be_opened_is_named(self) -> None:
        self.assertIsInstance(self.refused(), WhichRooms)
        self.assertIsInstance(self.refused("nonsense"), BadDsn)
        self.assertIsInstance(self.refused("host=127.0.0.1 port=1 dbname=none"), DatabaseAway)
        none = self.configuration("server_name: example.org\n")
        self.assertIsInstance(self.refused(config=none), ConfigError)
        self.sql("INSERT INTO synrepl._server (server_name) VALUES ('this.example')")
        other = self.configuration(f"server_name: other.example\ndatabase: {self.dsn}\n")
        self.assertIsInstance(self.refused(config=other), WrongServer)

    def test_nothing_is_written_through_it(self) -> None:
        async def program() -> None:
            async with open_rooms(self.dsn) as rooms:
                await rooms.database.run("write", lambda txn: txn.execute("SELECT 1"))

        with self.assertRaises(OnlyRead):
            asyncio.run(program())
