"""``synrepl schema``: a process and a real database, embedded or not."""

from __future__ import annotations

import json
from pathlib import Path

from twisted.internet import reactor

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.storage.migrations import load
from synrepl.testing.postgres import fresh_database
from tests.cli.cli_case import CliCase, CommandResult, free_port

MIGRATIONS = [str(migration) for migration in load().migrations]
MIGRATION = MIGRATIONS[0]


class DatabaseCase(CliCase):
    """Tests with a database of their own."""

    def configured(self, dsn: str) -> Path:
        """A configuration for a database."""
        path = self.directory / "master.yaml"
        path.write_text(
            f"server_name: example.com\ndatabase: {dsn}\ncatalogue: none\n"
            "streams: [{name: orders, columns: {order_id: text}}]\n"
        )
        return path


class SchemaShown(DatabaseCase):
    """``synrepl schema`` without --apply."""

    async def test_shows_migrations_and_tables(self) -> None:
        master = await self.master()
        done = await self.run_command("schema", "-c", master.path)
        first, rest = done.out.split("\n", 1)
        self.assertRegex(
            first,
            r"^database host=127\.0\.0\.1 port=\d+ dbname=test_\d+ user=\w+, of server example.com$",
        )
        events = (
            "kind text, event_id text?, room_id text, type text?, state_key text?, redacts text?,"
            " relates_to text?, membership text?, rejected boolean?, outlier boolean?"
        )
        applied = "\n".join(f"{name:28}  applied" for name in MIGRATIONS)
        golden = f"""
migration                     state
{applied}

stream  table        columns
events  as declared  {events}
typing  in memory    room_id text, user_ids text[]
orders  as declared  order_id text, amount bigint, note json?
"""
        self.assertEqual(CommandResult(done.code, rest, done.err), CommandResult(0, golden, ""))

    async def test_shows_pending_migrations_of_an_empty_database(self) -> None:
        path = self.configured(await fresh_database(self))
        done = await self.run_command("schema", "-c", path)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(f"{MIGRATION}  pending\n", done.out)
        self.assertIn("orders  not made yet  order_id text\n", done.out)

    async def test_shows_how_a_table_differs(self) -> None:
        master = await self.master()
        other = self.directory / "other.yaml"
        columns = "{order_id: bigint, note: 'json?', more: 'text?'}"
        other.write_text(f"streams: [{{name: orders, columns: {columns}}}]\n")
        done = await self.run_command("schema", "-c", master.path, "-c", other)
        self.assertIn(
            "orders  differs      order_id bigint (the table has text), note json?,"
            " more text? (not in the table yet), amount bigint (not declared)\n",
            done.out,
        )
        done = await self.run_command("schema", "-c", master.path, "-c", other, "--json")
        tables = json.loads(done.out)["tables"]
        self.assertEqual(
            tables[-1],
            {
                "stream": "orders",
                "state": "differs",
                "columns": [
                    {"name": "order_id", "declared": "bigint", "found": "text"},
                    {"name": "note", "declared": "json?", "found": "json?"},
                    {"name": "more", "declared": "text?", "found": None},
                    {"name": "amount", "declared": None, "found": "bigint"},
                ],
            },
        )


class SchemaUpgrade(DatabaseCase):
    """``synrepl schema --apply``."""

    async def test_applies_each_phase_in_order(self) -> None:
        path = self.configured(await fresh_database(self))
        done = await self.run_command("schema", "-c", path, "--apply", "post")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn(f"{MIGRATION} is still to be applied, and comes before", done.err)
        done = await self.run_command("schema", "-c", path, "--apply", "pre")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(f"{MIGRATION}  applied now\n", done.out)
        for phase in ("pre", "post", "all"):
            done = await self.run_command("schema", "-c", path, "--apply", phase, "--json")
            self.assertEqual((done.code, done.err), (0, ""))
            answer = json.loads(done.out)
            self.assertEqual(answer["applied_now"], [])
            self.assertEqual(
                answer["migrations"],
                [{"migration": name, "applied": True} for name in MIGRATIONS],
            )

    async def test_refuses_a_database_of_a_newer_version(self) -> None:
        dsn = await fresh_database(self)
        path = self.configured(dsn)
        await self.run_command("schema", "-c", path, "--apply", "all")
        database = PostgresDatabase(reactor, dsn, "test")
        await database.run(
            "newer",
            lambda txn: txn.execute(
                "INSERT INTO synrepl._migrations (migration, checksum) VALUES ('9999_x.pre', '')"
            ),
        )
        await database.close()
        done = await self.run_command("schema", "-c", path)
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("is at 9999_x.pre, which this version of synrepl does not know", done.err)

    async def test_refuses_a_missing_database(self) -> None:
        path = self.configured(await fresh_database(self) + "_nope")
        done = await self.run_command("schema", "-c", path)
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertRegex(done.err, r"^synrepl: error: .*_nope. does not exist.*\n$")
        worker = self.directory / "worker.yaml"
        worker.write_text(
            "server_name: x\ninstance_name: w\ncatch_up: http\n"
            "master: {port: 1, http_url: 'http://localhost'}\n"
        )
        done = await self.run_command("schema", "-c", worker)
        message = "the configuration has no database to look at: set 'database' or 'database_path'"
        self.assertEqual(done, CommandResult(2, "", f"synrepl: error: {message}\n"))


def ports() -> tuple[object, ...]:
    """Options that name free ports."""
    return "--replication-port", free_port(), "--http-port", free_port()


class SchemaOfAnEmbeddedDatabase(CliCase):
    """``database: embedded``."""

    async def test_starts_the_embedded_database_if_it_is_not_running(self) -> None:
        done = await self.run_command("init", "x", "--server-name", "example.com", *ports())
        self.assertEqual(done.code, 0, done.err)
        path = self.directory / "x" / "master.yaml"
        done = await self.run_command("schema", "-c", path, "--apply", "all", "--json")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(json.loads(done.out)["applied_now"], MIGRATIONS)
        self.assertFalse((self.directory / "x" / "data" / "postgres.dsn").exists())

        running = self.start("master", "-c", path)
        await running.stderr_containing("is ready")
        done = await self.run_command("schema", "-c", path)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(f"{MIGRATION}  applied\n", done.out)
        self.assertIn("as declared", done.out)
        running.signal("TERM")
        self.assertEqual((await running.done()).code, 0)
