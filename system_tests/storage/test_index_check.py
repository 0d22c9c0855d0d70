"""Indexes are checked with amcheck before state groups are collected."""

from __future__ import annotations

from shutil import rmtree
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.launch.postgres import PostgresServer
from synrepl.storage.rooms.maintenance.index_check import IndexDamaged, IndexesNotChecked
from synrepl.testing.directories import server_directory
from tests.storage.postgres import prepare
from tests.storage.rooms.test_collecting import GroupsCase

reactor: Any = _reactor


class CheckedIndexes(GroupsCase):
    """A damaged index may lead a collection to groups that are in use: nothing is removed then."""

    async def make_database(self) -> str:
        directory = server_directory()  # its account may not enter trial's
        self.addCleanup(rmtree, directory)
        server = PostgresServer(directory, prefer_system=True, fsync=False)
        server.start()
        self.addCleanup(server.stop)
        await prepare(server.dsn)
        return server.dsn

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        room = await self.stored()
        self.room_id = room.room_id or ""
        await self.add_garbage(self.room_id, 2)
        self.groups = self.count_groups()

    def count_groups(self) -> int:
        """How many state groups are stored."""
        return int(self.sql("SELECT count(*) FROM synrepl._state_groups"))

    async def test_nothing_is_removed_by_a_role_that_may_not_check(self) -> None:
        self.sql("CREATE EXTENSION amcheck")
        self.sql(
            "CREATE ROLE keeper LOGIN PASSWORD 'keeper' IN ROLE pg_read_all_data, pg_write_all_data"
        )
        address = self.dsn.rpartition("@")[2]
        database = PostgresDatabase(reactor, f"postgresql://keeper:keeper@{address}", "keeper")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        with self.assertRaisesRegex(IndexesNotChecked, "GRANT EXECUTE"):
            await RoomMaintenance(database).collect(self.room_id)
        self.assertEqual(self.count_groups(), self.groups)

    async def test_a_damaged_index_is_found_before_anything_is_removed(self) -> None:
        self.assertIn("synrepl._state_groups_key", await self.maintenance.check_indexes())
        # An index that claims to be whole and is empty, as after its file was lost.
        self.sql("CREATE INDEX damaged ON synrepl._room_events (group_after) WHERE group_after < 0")
        self.sql(
            "UPDATE pg_index SET indpred = NULL WHERE indexrelid = 'synrepl.damaged'::regclass"
        )
        with self.assertRaisesRegex(IndexDamaged, "REINDEX INDEX synrepl.damaged"):
            await self.maintenance.collect(self.room_id)
        self.assertEqual(self.count_groups(), self.groups)

    async def test_a_collection_removes_what_is_unneeded_once_indexes_are_checked(self) -> None:
        await self.maintenance.collect(self.room_id)
        self.assertLess(self.count_groups(), self.groups)
