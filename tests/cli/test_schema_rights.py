"""``synrepl schema grant`` and ``revoke``, on a real database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.errors import InsufficientPrivilege

from synrepl.testing.postgres import fresh_database
from tests.cli.cli_case import CliCase, CommandResult

ORDER = json.dumps([{"order_id": "o1", "amount": 5}])


class GrantAndRevoke(CliCase):
    """An application that appends orders."""

    async def prepare(self) -> Path:
        """A database that a master has used, and a role; the master's configuration."""
        master = await self.master()
        await master.stop()
        (line,) = [x for x in master.path.read_text().splitlines() if x.startswith("database: ")]
        self.dsn = line.removeprefix("database: ")
        self.run_sql("CREATE ROLE shop")
        self.addCleanup(self.run_sql, "DROP OWNED BY shop; DROP ROLE shop")
        return master.path

    def run_sql(self, *statements: str) -> Any:
        """Run statements; the first cell of the last answer."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            connection.commit()
            return None if row is None else row[0]

    def as_shop(self, statement: str) -> Any:
        return self.run_sql("SET ROLE shop", statement)

    async def schema(self, path: Path, *arguments: str) -> CommandResult:
        command, *more = arguments
        return await self.run_command("schema", command, "-c", path, *more)

    async def test_a_granted_role_can_append_and_read_and_nothing_else(self) -> None:
        path = await self.prepare()
        append = f"SELECT synrepl.append('orders', '{ORDER}')"
        with self.assertRaises(InsufficientPrivilege):
            self.as_shop(append)
        done = await self.schema(path, "grant", "shop", "orders", "--append", "--read")
        self.assertEqual(
            done, CommandResult(0, "shop may append to orders\nshop may read orders\n", "")
        )
        token = self.as_shop(append)
        self.assertEqual(self.as_shop("SELECT max(stream_id) FROM synrepl.orders"), token)
        for statement in (
            "INSERT INTO synrepl.orders VALUES (9, 0, 'sql', 'o2')",
            "SELECT synrepl.append('events', '[]')",
            "SELECT nextval('synrepl._orders_seq')",
        ):
            with self.assertRaises(InsufficientPrivilege):
                self.as_shop(statement)
        done = await self.schema(path, "revoke", "shop")
        self.assertEqual(
            done, CommandResult(0, "shop has no rights in the schema synrepl any more\n", "")
        )
        with self.assertRaises(InsufficientPrivilege):
            self.as_shop(append)

    async def test_printed_statements_do_the_same(self) -> None:
        path = await self.prepare()
        done = await self.schema(path, "grant", "shop", "--append", "--read", "--erase", "--print")
        self.assertEqual((done.code, done.err), (0, ""))
        with self.assertRaises(InsufficientPrivilege):
            self.as_shop("SELECT count(*) FROM synrepl.orders")
        self.run_sql(done.out)
        self.as_shop(f"SELECT synrepl.append('orders', '{ORDER}')")
        self.assertEqual(self.as_shop("SELECT count(*) FROM synrepl.orders"), 1)
        self.assertTrue(self.as_shop("SELECT synrepl.erase('@a:b')"))
        done = await self.schema(path, "revoke", "shop", "--print")
        self.run_sql(done.out)
        with self.assertRaises(InsufficientPrivilege):
            self.as_shop("SELECT count(*) FROM synrepl.orders")

    async def test_refuses_unknown_roles_and_streams(self) -> None:
        path = await self.prepare()
        cases: Sequence[tuple[tuple[str, ...], int, str]] = (
            (("grant", "shop"), 2, "say what to grant"),
            (("grant", "nobody", "--append"), 1, "there is no role 'nobody'"),
            (("grant", "postgres", "--append"), 1, "role 'postgres' is a superuser"),
            (("grant", "shop", "ordres", "--append"), 1, "did you mean orders?"),
            (("grant", "shop", "typing", "--append"), 1, "is kept in memory"),
            (("revoke", "nobody"), 1, "there is no role 'nobody'"),
        )
        for arguments, code, words in cases:
            done = await self.schema(path, *arguments)
            self.assertEqual((done.code, done.out), (code, ""), arguments)
            self.assertIn(words, done.err)
        done = await self.run_command("schema")
        self.assertEqual(done.code, 2)
        self.assertIn("Missing option '-c'", done.err)
        done = await self.run_command("schema", "-c", path, "revoke", "shop")
        self.assertEqual(done.code, 2)
        self.assertIn("give options after 'revoke'", done.err)

    async def test_refuses_a_database_without_schema(self) -> None:
        path = self.directory / "master.yaml"
        dsn = await fresh_database(self)
        path.write_text(f"server_name: example.com\ndatabase: {dsn}\n")
        done = await self.schema(path, "grant", "shop", "--append")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("run 'synrepl schema' to upgrade it", done.err)
