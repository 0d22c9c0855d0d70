"""Migrations: folders, their order, and faulty databases."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import SynchronousTestCase, TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.storage.database import QueryFailed, Transaction
from synrepl.storage.migrations import (
    BadMigrations,
    DatabaseNewer,
    MigrationEdited,
    MigrationPhase,
    MigrationsOutOfOrder,
    Schema,
    SchemaBehind,
    applied,
    check,
    load,
    migrate,
    pending,
)
from synrepl.testing.catalog import describe
from synrepl.testing.postgres import fresh_database

TABLES = "CREATE TABLE orders (id bigint PRIMARY KEY, total text);"
WIDEN = "ALTER TABLE orders ADD COLUMN cents bigint; -- 100%"
NARROW = "ALTER TABLE orders DROP COLUMN total;"
INDEX = "CREATE INDEX orders_cents ON orders (cents);"
FULL = "CREATE TABLE orders (id bigint PRIMARY KEY, cents bigint);" + INDEX

FOLDER = {
    "0001_tables.pre.sql": TABLES,
    "0002_cents.pre.sql": WIDEN,
    "0002_cents.post.sql": NARROW,
    "0003_index.pre.sql": INDEX,
}
NAMES = ["0001_tables.pre", "0002_cents.pre", "0002_cents.post", "0003_index.pre"]


def folder(case: Any, files: dict[str, str]) -> Path:
    path = Path(mkdtemp(prefix="synrepl-test-"))
    case.addCleanup(shutil.rmtree, path)
    for name, sql in files.items():
        (path / name).write_text(sql)
    return path


class MigrationFolders(SynchronousTestCase):
    """The contents of a folder."""

    def load(self, *names: str) -> Schema:
        return load(folder(self, {name: f"-- {name}" for name in names}))

    def test_sorts_by_number_and_phase(self) -> None:
        schema = self.load(*reversed(FOLDER), "full.sql", "README.md")
        self.assertEqual([str(migration) for migration in schema.migrations], NAMES)
        self.assertEqual(schema.full, "-- full.sql")

    def test_one_of_two_phases_is_enough(self) -> None:
        schema = self.load("0001_a.post.sql", "0002_b.pre.sql")
        self.assertEqual(len(schema.migrations), 2)

    def test_refuses_bad_folders(self) -> None:
        for names, reason in {
            ("0002_a.pre.sql",): "number 0001 is missing",
            ("0001_a.pre.sql", "0003_b.pre.sql"): "number 0002 is missing",
            ("0001_a.pre.sql", "0001_b.pre.sql"): "used before",
            ("0001_a.sql",): "not named like",
            ("1_a.pre.sql",): "not named like",
            ("0001_A.pre.sql",): "not named like",
        }.items():
            with self.subTest(names), self.assertRaises(BadMigrations) as caught:
                self.load(*names)
            self.assertIn(reason, str(caught.exception))

    def test_checksum_is_of_the_contents(self) -> None:
        [one] = load(folder(self, {"0001_a.pre.sql": "SELECT 1\n"})).migrations
        [dos] = load(folder(self, {"0001_a.pre.sql": "SELECT 1\r\n"})).migrations
        [two] = load(folder(self, {"0001_a.pre.sql": "SELECT 2\n"})).migrations
        self.assertEqual(one.checksum, dos.checksum)
        self.assertNotEqual(one.checksum, two.checksum)

    def test_loads_the_products_own_migrations(self) -> None:
        self.assertTrue(load().migrations)


class MigratingDatabases(TestCase):
    """On a real database."""

    timeout = 60

    async def setUp(self) -> None:
        self.database = await self.new_database()

    async def new_database(self) -> PostgresDatabase:
        dsn = await fresh_database(self)
        database = PostgresDatabase(reactor, dsn, "tests")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        return database

    def schema(self, *without: str, **changed: str) -> Schema:
        files = {name: sql for name, sql in FOLDER.items() if name not in without}
        return load(folder(self, {**files, **changed}))

    async def migrate(
        self, schema: Schema, upto: MigrationPhase = MigrationPhase.POST
    ) -> list[str]:
        return [str(each) for each in await migrate(self.database, schema, upto)]

    async def pending(self, schema: Schema) -> list[str]:
        found = await self.database.run("pending", lambda txn: pending(txn, schema))
        return [str(migration) for migration in found]

    async def applied(self) -> list[str]:
        return list(await self.database.run("applied", applied))

    async def described(self, database: PostgresDatabase) -> list[str]:
        return await database.run("describe", describe, read_only=True)

    async def test_applies_everything_to_a_new_database(self) -> None:
        self.assertEqual(await self.pending(self.schema()), NAMES)
        self.assertEqual(await self.migrate(self.schema(), MigrationPhase.PRE), NAMES)
        self.assertEqual(await self.migrate(self.schema()), [])
        self.assertEqual(await self.pending(self.schema()), [])
        self.assertEqual(sorted(await self.applied()), sorted(NAMES))

    async def test_the_full_script_equals_the_migrations(self) -> None:
        full = self.schema(**{"full.sql": FULL})
        other = await self.new_database()
        await migrate(other, full)
        for count in range(1, 4):
            await self.migrate(self.schema(*list(FOLDER)[count:]))
        await self.migrate(full)
        self.assertEqual(await self.described(self.database), await self.described(other))

    async def test_comparison_sees_every_difference(self) -> None:
        await self.migrate(self.schema())
        before = await self.described(self.database)
        for sql in (
            "ALTER TABLE orders ALTER cents SET DEFAULT 1",
            "ALTER TABLE orders ALTER cents SET NOT NULL",
            "ALTER TABLE orders ADD CHECK (cents > 0)",
            "CREATE INDEX another ON orders (id)",
            "CREATE SEQUENCE s INCREMENT -1",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 2'",
            "CREATE VIEW v AS SELECT id FROM orders",
            "CREATE TYPE e AS ENUM ('a')",
            "ALTER TYPE e ADD VALUE 'b'",
            "COMMENT ON TABLE orders IS 'x'",
            "ALTER TABLE orders SET (fillfactor = 50)",
        ):
            await self.database.run("change", lambda txn, sql=sql: txn.execute(sql))
            after = await self.described(self.database)
            self.assertNotEqual(before, after, sql)
            before = after

    async def test_supports_a_rolling_upgrade(self) -> None:
        old, new = self.schema(*list(FOLDER)[1:]), self.schema()
        await self.migrate(old)
        self.assertEqual(await self.migrate(new, MigrationPhase.PRE), ["0002_cents.pre"])
        self.assertEqual(await self.migrate(new, MigrationPhase.PRE), [])
        with self.assertRaises(SchemaBehind) as caught:
            await self.database.run("check", lambda txn: check(txn, new))
        self.assertIn("0003_index.pre", str(caught.exception))
        self.assertEqual(await self.migrate(new), ["0002_cents.post", "0003_index.pre"])
        await self.database.run("check", lambda txn: check(txn, new))

    async def test_pending_post_does_not_keep_the_code_from_running(self) -> None:
        await self.migrate(self.schema(*list(FOLDER)[1:]))
        schema = self.schema("0003_index.pre.sql")
        await self.migrate(schema, MigrationPhase.PRE)
        await self.database.run("check", lambda txn: check(txn, schema))

    async def test_many_processes_can_migrate_at_once(self) -> None:
        schema = self.schema()
        done = await gatherResults([Deferred.fromCoroutine(self.migrate(schema)) for _ in range(5)])
        self.assertEqual(sorted(name for each in done for name in each), sorted(NAMES))

    async def test_failing_migration_leaves_those_before_it(self) -> None:
        await self.migrate(self.schema(*list(FOLDER)[1:]))
        broken = self.schema(**{"0002_cents.post.sql": NARROW + "SELECT no_such_column"})
        with self.assertRaises(QueryFailed):
            await self.migrate(broken)
        self.assertEqual(await self.applied(), NAMES[:2])
        self.assertEqual(await self.migrate(self.schema()), NAMES[2:])

    async def test_refuses_an_edited_migration(self) -> None:
        await self.migrate(self.schema())
        edited = self.schema(**{"0002_cents.pre.sql": WIDEN + " "})
        with self.assertRaises(MigrationEdited) as caught:
            await self.migrate(edited)
        self.assertIn("0002_cents.pre", str(caught.exception))

    async def test_refuses_a_database_newer_than_the_code(self) -> None:
        await self.migrate(self.schema())
        old = self.schema("0003_index.pre.sql")
        with self.assertRaises(DatabaseNewer) as caught:
            await self.database.run("check", lambda txn: check(txn, old))
        self.assertIn("0003_index.pre", str(caught.exception))
        self.assertIn("ends at 0002_cents.post", str(caught.exception))

    async def test_refuses_migrations_applied_out_of_order(self) -> None:
        await self.migrate(self.schema())

        def forget(txn: Transaction) -> None:
            txn.execute("DELETE FROM synrepl._migrations WHERE migration = '0002_cents.pre'")

        await self.database.run("forget", forget)
        with self.assertRaises(MigrationsOutOfOrder):
            await self.migrate(self.schema())

    async def test_applying_the_products_own_twice_changes_nothing(self) -> None:
        schema = load()
        done = await self.migrate(schema)
        self.assertEqual(done, [str(migration) for migration in schema.migrations])
        self.assertEqual(await self.migrate(schema), [])
        await self.database.run("check", lambda txn: check(txn, schema))
