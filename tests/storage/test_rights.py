"""The rights of an application's role, and the immutability of facts, with real roles."""

from __future__ import annotations

import json
from itertools import count
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2
from psycopg2.errors import InsufficientPrivilege
from twisted.internet.defer import Deferred

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.core.tokens import Range
from synrepl.storage.migrations import Schema, load, migrate
from synrepl.storage.rights import (
    NoSuchRole,
    Rights,
    RightsLeft,
    RoleAboveRights,
    grant,
    revoke,
)
from synrepl.storage.store import Draft, StreamNotMade
from synrepl.storage.tables import ensure_tables
from synrepl.streams.declared import declare
from synrepl.streams.definition import Fact
from tests.storage.postgres import PostgresCase, Process, reactor
from tests.storage.samples import EVERYTHING, NOTES, note, rows_of

JOBS = declare("jobs", {"job": "text"}, ephemeral=True)
LATER = declare("later", {"text": "text"})

_numbers = count(1)

APPEND = "SELECT synrepl.append('notes', '[{\"text\": \"a\"}]')"


class RightsCase(PostgresCase):
    """A database whose owner is not a superuser, and an application's role."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql("DROP SCHEMA synrepl CASCADE")
        self.owner = self.role("owner")
        name = urlsplit(self.dsn).path[1:]
        self.sql(f"GRANT CREATE ON DATABASE {name} TO {self.owner}")
        self.processes = Process(self.dsn_of(self.owner), "master")
        self.addCleanup(lambda: Deferred.fromCoroutine(self.processes.close()))
        await migrate(self.processes.database, load())
        await self.processes.store.prepare([NOTES, EVERYTHING, JOBS])
        self.shop = self.role("shop")

    def role(self, name: str, more: str = "") -> str:
        """A role that can log in, dropped at the end of the test."""
        role = f"{name}_{next(_numbers)}"
        self.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' {more}")
        self.addCleanup(self.sql, f"DROP OWNED BY {role}; DROP ROLE {role}")
        return role

    def dsn_of(self, role: str) -> str:
        parts = urlsplit(self.dsn)
        netloc = f"{role}:secret@{parts.netloc.rpartition('@')[2]}"
        return urlunsplit(parts._replace(netloc=netloc))

    def connect_as(self, role: str) -> psycopg2.extensions.connection:
        connection = psycopg2.connect(self.dsn_of(role))
        connection.autocommit = True
        self.addCleanup(connection.close)
        return connection

    async def grant(self, role: str | None = None, *streams: str, **rights: bool) -> list[str]:
        given = Rights(streams=streams, **rights)
        return await self.processes.database.run(
            "grant", lambda txn: grant(txn, role or self.shop, given)
        )

    def refused(self, connection: Any, *statements: str) -> None:
        """Check that the role may run none of the statements."""
        for statement in statements:
            with self.subTest(statement):
                self.assertRaises(InsufficientPrivilege, self.sql, statement, on=connection)

    async def facts(self) -> list[Fact]:
        page = await self.processes.store.page(NOTES, Range(0, 1000), None, 1000)
        return list(page.facts)


class Applications(RightsCase):
    """A role that appends and reads, and does nothing else."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        await self.grant(append=True, read=True)
        self.connection = self.connect_as(self.shop)

    async def test_it_appends_and_reads(self) -> None:
        token = self.sql(APPEND, on=self.connection)
        self.assertEqual(await self.facts(), [Fact(token, "sql", (note("a"),))])
        self.assertEqual(self.sql("SELECT text FROM synrepl.notes", on=self.connection), "a")

    async def test_it_appends_values_of_every_type(self) -> None:
        rows = [row for row in rows_of(EVERYTHING) if row.doc is not None]  # type: ignore[attr-defined]
        fields = EVERYTHING.kinds[""].__struct_fields__
        objects = [{field: getattr(row, field) for field in fields} for row in rows]
        self.sql("SELECT synrepl.append('everything', %s)", json.dumps(objects), on=self.connection)
        page = await self.processes.store.page(EVERYTHING, Range(0, 9), None, 1000)
        self.assertEqual([fact.rows for fact in page.facts], [tuple(rows)])

    async def test_it_appends_in_a_transaction_of_its_own(self) -> None:
        self.connection.autocommit = False
        self.sql(APPEND, on=self.connection)
        self.connection.rollback()
        self.sql(APPEND, on=self.connection)
        self.connection.commit()
        self.assertEqual(len(await self.facts()), 1)

    async def test_every_statement_that_writes_by_hand_is_refused(self) -> None:
        self.sql(APPEND, on=self.connection)
        owner = self.connect_as(self.owner)
        with owner.cursor() as cursor:
            cursor.execute(
                "SELECT relkind, oid::regclass::text FROM pg_class"
                " WHERE relnamespace = 'synrepl'::regnamespace AND relkind IN ('r', 'S')"
            )
            found = cursor.fetchall()
        tables = [name for kind, name in found if kind == "r"]
        self.assertIn("synrepl._writers", tables)
        self.assertIn("synrepl.notes", tables)
        for table in tables:
            self.refused(
                self.connection,
                f"INSERT INTO {table} DEFAULT VALUES",
                f"DELETE FROM {table}",
                f"TRUNCATE {table}",
                f"DO $$ BEGIN LOCK TABLE {table} IN ROW EXCLUSIVE MODE; END $$",
                f"CREATE TRIGGER t BEFORE INSERT ON {table} EXECUTE FUNCTION synrepl.refuse_change()",
            )
        self.refused(
            self.connection,
            "UPDATE synrepl.notes SET text = 'b'",
            "SELECT * FROM synrepl.notes FOR UPDATE",
            "SELECT * FROM synrepl._writers",
            "SELECT * FROM synrepl._idempotency_keys",
            "COPY synrepl.notes FROM STDIN",
            "ALTER TABLE synrepl.notes DISABLE TRIGGER ALL",
            "ALTER TABLE synrepl.notes ADD COLUMN c text",
            "DROP TABLE synrepl.notes",
            "CREATE TABLE synrepl.mine (a int)",
            "CREATE FUNCTION synrepl.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        )
        for sequence in (name for kind, name in found if kind == "S"):
            self.refused(
                self.connection,
                f"SELECT nextval('{sequence}')",
                f"SELECT setval('{sequence}', 1000)",
                f"SELECT last_value FROM {sequence}",
            )
        self.refused(self.connection, "SELECT currval('synrepl._notes_seq')", "SELECT lastval()")

    async def test_every_function_of_the_processes_is_refused(self) -> None:
        self.refused(
            self.connection,
            "SELECT synrepl.enter(1, 0, true)",
            "SELECT synrepl.reserve(1, 0, true, 'synrepl._notes_seq', 1, 0)",
            "SELECT synrepl.catch_up('synrepl._notes_seq', 100)",
            "SELECT synrepl.take_place('notes', 'sql')",
            "SELECT synrepl.add_writer('notes', 'w')",
            "SELECT synrepl.share_stream('notes')",
            "SELECT synrepl.protect_stream('notes')",
            "SELECT synrepl.erase('@a:b')",
        )

    async def test_a_function_that_is_added_is_for_processes_until_it_is_granted(self) -> None:
        """A new function must be revoked from PUBLIC, and must pin its search path."""
        functions = self.rows(
            "SELECT proname, has_function_privilege(%s, oid, 'EXECUTE'),"
            " coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false), prosecdef"
            " FROM pg_proc WHERE pronamespace = 'synrepl'::regnamespace",
            self.shop,
        )
        allowed = {name for name, may, _, _ in functions if may}
        self.assertEqual(allowed, {"append", "_append"})
        unpinned = {name for name, _, pinned, _ in functions if not pinned}
        self.assertEqual(unpinned, {"lock_class"})  # this one is inlined
        elevated = {name for name, _, _, definer in functions if definer}
        streams = {f"_append_{stream.name}" for stream in (NOTES, EVERYTHING, JOBS)}
        self.assertEqual(elevated, {"_append", "erase", *streams})

    async def test_a_stream_that_is_made_later_is_shared_like_the_others(self) -> None:
        await self.processes.store.prepare([LATER])
        self.sql("SELECT synrepl.append('later', '[{\"text\": \"l\"}]')", on=self.connection)
        self.assertEqual(self.sql("SELECT text FROM synrepl.later", on=self.connection), "l")
        self.refused(self.connection, "INSERT INTO synrepl.later VALUES (9, 0, 'sql', 'x')")

    async def test_it_may_be_no_writer_but_sql_and_those_of_its_own_name(self) -> None:
        member = self.role("member", f"IN ROLE {self.shop}")
        for writer in ("billing", self.shop, self.owner):
            self.sql("SELECT synrepl.add_writer('notes', %s)", writer)
        for role in (self.shop, member):
            connection = self.connect_as(role)
            self.sql(APPEND, on=connection)
            self.sql(f"SELECT synrepl.append('notes', '[]', '{self.shop}')", on=connection)
            self.refused(
                connection,
                "SELECT synrepl.append('notes', '[]', 'billing')",
                f"SELECT synrepl.append('notes', '[]', '{self.owner}')",
                "SELECT synrepl._append('notes', '[]', 'billing')",
            )
        owner = self.connect_as(self.owner)
        self.sql("SELECT synrepl.append('notes', '[]', 'billing')", on=owner)

    async def test_a_role_that_is_set_counts_and_not_the_one_that_logged_in(self) -> None:
        self.sql("SELECT synrepl.add_writer('notes', 'billing')")
        as_superuser = self.connect()
        as_billing = "SELECT synrepl.append('notes', '[]', 'billing')"
        self.sql(as_billing, on=as_superuser)
        self.sql(f"SET ROLE {self.shop}", on=as_superuser)
        self.sql(APPEND, on=as_superuser)
        self.refused(as_superuser, as_billing)
        pooler, guest = self.role("pooler", "NOINHERIT"), self.role("guest")
        self.sql(f"GRANT {self.shop}, {guest} TO {pooler}")
        connection = self.connect_as(pooler)
        self.sql(f"SET ROLE {guest}", on=connection)
        self.refused(connection, APPEND)
        self.sql(f"SET ROLE {self.shop}", on=connection)
        self.sql(APPEND, on=connection)

    async def test_a_function_that_runs_as_its_owner_appends_for_others(self) -> None:
        """Applications may have such functions for users without rights."""
        guest = self.role("guest")
        self.sql(f"CREATE SCHEMA api AUTHORIZATION {self.shop}")
        self.sql(f"GRANT USAGE ON SCHEMA api TO {guest}")
        self.sql(
            "CREATE FUNCTION api.order() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
            f" AS $$ {APPEND} $$",
            on=self.connection,
        )
        connection = self.connect_as(guest)
        self.refused(connection, APPEND)
        self.sql("SELECT api.order()", on=connection)
        self.assertEqual(len(await self.facts()), 1)

    async def test_nothing_of_the_caller_runs_as_the_owner(self) -> None:
        self.sql(f"CREATE SCHEMA evil AUTHORIZATION {self.shop}")
        for name, arguments, result in (
            ("abs", "bigint", "bigint"),
            ("abs", "integer", "integer"),
            ("greatest", "bigint, bigint", "bigint"),
            ("format", "text, text", "text"),
            ("jsonb_typeof", "jsonb", "text"),
            ("jsonb_array_elements", "jsonb", "SETOF jsonb"),
            ("current_setting", "text", "text"),
            ("pg_notify", "text, text", "void"),
            ("nextval", "regclass", "bigint"),
            ("same", "text, text", "boolean"),
        ):
            self.sql(
                f"CREATE FUNCTION evil.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql"
                " AS $$ BEGIN RAISE EXCEPTION 'ran as %%', current_user; END $$".replace("%%", "%"),
                on=self.connection,
            )
        self.sql(
            "CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);"
            "CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);"
            "CREATE TEMP TABLE _writers (stream text, writer text);"
            "CREATE TEMP TABLE _streams (stream text);"
            "CREATE TEMP TABLE notes (stream_id bigint, row_no int, writer text, text text);"
            "CREATE TYPE pg_temp.jsonb AS (a int);"
            "SET search_path = evil, pg_temp, synrepl, pg_catalog",
            on=self.connection,
        )
        for text in ("'); DROP TABLE synrepl.notes; --", "$$", '"', "%s", "\\"):
            rows = json.dumps([{"text": text}])
            self.sql("SELECT synrepl.append('notes', %s)", rows, on=self.connection)
            name = f'notes"; DROP TABLE synrepl.notes; --{text}'
            with self.assertRaises(psycopg2.Error):
                self.sql("SELECT synrepl.append(%s, %s)", name, rows, on=self.connection)
            with self.assertRaises(psycopg2.Error):
                self.sql("SELECT synrepl.append('notes', '[]', %s)", text, on=self.connection)
        self.assertEqual(len(await self.facts()), 5)

    async def test_settings_of_the_session_let_it_do_no_more(self) -> None:
        self.sql("SELECT synrepl.add_writer('notes', 'billing')")
        for setting in (
            "synrepl.added_writer = ''",
            "standard_conforming_strings = off",
            "array_nulls = off",
            "transform_null_equals = on",
            "check_function_bodies = off",
        ):
            self.sql(f"SET {setting}", on=self.connection)
        self.sql(APPEND, on=self.connection)
        self.refused(
            self.connection,
            "SET session_replication_role = replica",
            f"SET ROLE {self.owner}",
            "SELECT synrepl.append('notes', '[]', 'billing')",
        )

    def rows(self, statement: str, *params: object) -> list[Any]:
        with self.connect().cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())


class Granting(RightsCase):
    """Granting and revoking."""

    async def test_a_role_may_append_to_some_streams_only(self) -> None:
        await self.grant(None, "notes", append=True)
        connection = self.connect_as(self.shop)
        self.sql(APPEND, on=connection)
        self.sql("SELECT synrepl._append_notes('[]', 'sql')", on=connection)
        self.refused(
            connection,
            "SELECT synrepl.append('jobs', '[]')",
            "SELECT synrepl._append('notes', '[]', 'sql')",
            "SELECT synrepl._append_jobs('[]', 'sql')",
            "SELECT synrepl.append('notes', '[]', 'billing')",
            "SELECT * FROM synrepl.notes",
        )
        with self.assertRaises(InsufficientPrivilege) as caught:
            self.sql("SELECT synrepl.append('note', '[]')", on=connection)
        message = str(caught.exception)
        self.assertIn(f'role "{self.shop}" may not append to stream "note"', message)
        self.assertIn("it may append to: notes", message)

    async def test_a_role_may_read_some_streams_only(self) -> None:
        await self.grant(None, "notes", read=True)
        connection = self.connect_as(self.shop)
        self.sql("SELECT count(*) FROM synrepl.notes", on=connection)
        self.refused(connection, "SELECT * FROM synrepl.jobs", APPEND)
        await self.processes.store.prepare([LATER])
        self.refused(connection, "SELECT * FROM synrepl.later")

    async def test_a_role_may_request_an_erasure(self) -> None:
        await self.grant(erase=True)
        connection = self.connect_as(self.shop)
        self.assertTrue(self.sql("SELECT synrepl.erase('@a:b')", on=connection))
        self.assertFalse(self.sql("SELECT synrepl.erase('@a:b')", on=connection))
        self.refused(
            connection,
            "SELECT * FROM synrepl._erased_subjects",
            "DELETE FROM synrepl._erased_subjects",
        )

    async def test_rights_add_up_and_are_revoked_together(self) -> None:
        await self.grant(append=True)
        await self.grant(None, "notes", read=True)
        connection = self.connect_as(self.shop)
        self.sql(APPEND, on=connection)
        self.sql("SELECT * FROM synrepl.notes", on=connection)
        await self.processes.database.run("revoke", lambda txn: revoke(txn, self.shop))
        self.refused(connection, APPEND, "SELECT * FROM synrepl.notes")
        self.sql(f"DROP ROLE {self.shop}; CREATE ROLE {self.shop}")

    async def test_rights_to_write_by_hand_are_taken(self) -> None:
        everything = ("TABLES", "SEQUENCES", "FUNCTIONS")
        for kind in everything:
            self.sql(f"GRANT ALL ON ALL {kind} IN SCHEMA synrepl TO {self.shop}")
        self.sql(f"GRANT ALL ON SCHEMA synrepl TO {self.shop}")
        connection = self.connect_as(self.shop)
        self.sql("SELECT nextval('synrepl._notes_seq')", on=connection)
        await self.grant(append=True)
        self.sql(APPEND, on=connection)
        self.refused(
            connection,
            "SELECT nextval('synrepl._notes_seq')",
            "INSERT INTO synrepl.notes VALUES (1, 0, 'sql', 'a')",
            "SELECT synrepl.reserve(1, 0, true, 'synrepl._notes_seq', 1, 0)",
            "CREATE TABLE synrepl.mine (a int)",
        )

    async def test_what_it_could_do_in_other_ways_is_refused_by_name(self) -> None:
        writing = self.role("writing", "IN ROLE pg_write_all_data")
        with self.assertRaises(RightsLeft) as caught:
            await self.grant(writing, append=True)
        self.assertIn("INSERT on synrepl.", str(caught.exception))
        self.assertFalse(
            self.sql("SELECT has_schema_privilege(%s, 'synrepl', 'USAGE')", writing)
            and self.sql(
                "SELECT has_function_privilege(%s, 'synrepl._append(text,jsonb,text)', 'EXECUTE')",
                writing,
            )
        )

    async def test_what_it_could_do_to_streams_made_later_is_refused_by_name(self) -> None:
        owner = self.connect_as(self.owner)
        change = "ALTER DEFAULT PRIVILEGES IN SCHEMA synrepl {} INSERT ON TABLES {} {}".format
        self.sql(change("GRANT", "TO", self.shop), on=owner)
        with self.assertRaises(RightsLeft) as caught:
            await self.grant(append=True)
        self.assertIn("INSERT on what will be made", str(caught.exception))
        self.sql(change("REVOKE", "FROM", self.shop), on=owner)
        await self.grant(append=True)

    async def test_roles_from_which_nothing_can_be_kept(self) -> None:
        member = self.role("member", f"IN ROLE {self.owner}")
        for role, words in (
            (self.role("mighty", "SUPERUSER"), "is a superuser"),
            (self.owner, "is the owner"),
            (member, "is a member of the owner"),
        ):
            with self.assertRaises(RoleAboveRights) as caught:
                await self.grant(role, append=True)
            self.assertIn(words, str(caught.exception))
        with self.assertRaises(NoSuchRole):
            await self.grant('no"body', append=True)
        with self.assertRaises(StreamNotMade):
            await self.grant(None, "later", append=True)

    async def test_a_role_with_an_awkward_name(self) -> None:
        self.sql('CREATE ROLE "a ""b\'; --"')
        try:
            statements = await self.grant("a \"b'; --", append=True, read=True)
            await self.processes.store.prepare([LATER])
            self.assertIn('TO "a ""b\'; --"', statements[-1])
        finally:
            self.sql('DROP OWNED BY "a ""b\'; --"; DROP ROLE "a ""b\'; --"')


class Upgrading(PostgresCase):
    """A database whose roles were granted rights on the tables."""

    async def test_roles_that_wrote_before_keep_what_they_need(self) -> None:
        self.sql("DROP SCHEMA synrepl CASCADE")
        database = PostgresDatabase(reactor, self.dsn, "old")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        schema = load()
        before = Schema(schema.migrations[:5], None)
        await migrate(database, before)
        role = f"worker_{next(_numbers)}"
        self.sql(f"CREATE ROLE {role}")
        self.addCleanup(self.sql, f"DROP OWNED BY {role}; DROP ROLE {role}")
        self.sql(f"GRANT ALL ON SCHEMA synrepl TO {role}")
        self.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA synrepl TO {role}")
        await migrate(database, schema)
        await database.run("tables", lambda txn: ensure_tables(txn, [NOTES]))
        self.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA synrepl TO {role}")
        self.sql("SELECT synrepl.add_writer('notes', 'billing')")
        connection = self.connect()
        self.sql(f"SET ROLE {role}", on=connection)
        self.sql("SELECT synrepl.append('notes', '[]', 'billing')", on=connection)
        with self.assertRaisesRegex(psycopg2.Error, "is fenced off"):
            self.sql("SELECT synrepl.enter(999, 0, true)", on=connection)


class Immutable(RightsCase):
    """Facts cannot be changed, not even by the owner or by superusers."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        lease = await self.processes.store.open_writer("w1", [NOTES, JOBS])
        await lease.append(NOTES, [Draft([[note(str(n))] for n in range(40)])], 0)
        await lease.append(JOBS, [Draft([[JOBS.kinds[""](str(n))] for n in range(40)])], 0)
        await lease.close()

    def never_changed(self, stream: str) -> None:
        for connection in (self.connect(), self.connect_as(self.owner)):
            for statement, word in (
                (f"UPDATE synrepl.{stream} SET writer = 'w2'", "update"),
                (f"UPDATE synrepl.{stream} SET writer = 'w2' WHERE stream_id = 7", "update"),
                (f"DELETE FROM synrepl.{stream} WHERE stream_id = 7", "delete"),
                (f"DELETE FROM synrepl.{stream}", "delete"),
                (f"TRUNCATE synrepl.{stream}", "truncate"),
                (f"MERGE INTO synrepl.{stream} t USING (SELECT 7 AS id) s ON t.stream_id = s.id"
                 " WHEN MATCHED THEN DELETE", "delete"),
                (f"INSERT INTO synrepl.{stream} SELECT * FROM synrepl.{stream} ON CONFLICT"
                 " (stream_id, row_no) DO UPDATE SET writer = 'w2'", "update"),
            ):  # fmt: skip
                with self.subTest(statement), self.assertRaises(psycopg2.Error) as caught:
                    self.sql(statement, on=connection)
                self.assertEqual(caught.exception.pgcode, "SY008")
                self.assertIn(f'{word} of stream "{stream}" is refused', str(caught.exception))
        self.assertEqual(self.sql(f"SELECT count(*) FROM synrepl.{stream}"), 40)

    async def test_rows_are_neither_changed_nor_deleted(self) -> None:
        self.never_changed("notes")
        self.never_changed("jobs")

    async def test_trimming_deletes_what_is_on_record_as_trimmed(self) -> None:
        await self.processes.store.record_positions(JOBS, 40, {})
        trim = await self.processes.store.trim(JOBS, 40, 40, 10)
        self.assertEqual((trim.upto, trim.rows), (10, 10))
        with self.assertRaises(psycopg2.Error):
            self.sql("DELETE FROM synrepl.jobs WHERE stream_id <= 11")
        self.assertEqual(self.sql("SELECT min(stream_id) FROM synrepl.jobs"), 11)

    async def test_the_owner_deletes_a_row_when_it_disables_the_trigger(self) -> None:
        owner = self.connect_as(self.owner)
        self.sql(
            "BEGIN; ALTER TABLE synrepl.notes DISABLE TRIGGER _never_deleted;"
            " DELETE FROM synrepl.notes WHERE stream_id = 7;"
            " ALTER TABLE synrepl.notes ENABLE TRIGGER _never_deleted; COMMIT",
            on=owner,
        )
        with self.assertRaises(psycopg2.Error):
            self.sql("DELETE FROM synrepl.notes WHERE stream_id = 8", on=owner)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes"), 39)

    async def test_a_table_that_an_older_version_made_is_protected_by_the_next_master(self) -> None:
        for name in ("_never_changed", "_never_deleted"):
            self.sql(f"DROP TRIGGER {name} ON synrepl.notes")
        busy = self.connect_as(self.owner)
        busy.autocommit = False
        self.sql(APPEND, on=busy)
        self.assertEqual(await self.processes.store.prepare([NOTES, JOBS]), ["notes"])
        busy.rollback()
        self.assertEqual(await self.processes.store.prepare([NOTES, JOBS]), [])
        self.never_changed("notes")
