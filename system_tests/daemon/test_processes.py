"""Masters and workers as processes: refusals at the start, a database that goes away, twistd."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.python.usage import UsageError

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.daemon.master_service import Options
from synrepl.storage.migrations import Schema, load, migrate
from synrepl.storage.writers import claim_startup
from synrepl.testing.postgres import fresh_database
from tests.cli.cli_case import REPOSITORY, CliCase, Command, free_port
from tests.driver.embedded_server import query_one

ORDERS = "streams: [{name: orders, columns: {order_id: text}}]\ncatalogue: none\n"


class Processes(CliCase):
    def configure(self, name: str, text: str) -> Path:
        path = self.directory / f"{name}.yaml"
        path.write_text(f"server_name: example.com\n{ORDERS}{text}")
        return path

    async def http(self, port: int, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer; 0 while nobody answers."""

        def ask() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, 60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)
            except OSError:
                return 0, None

        return await deferToThread(ask)

    async def until(self, port: int, path: str, status: int) -> Any:
        """The answer, once it has this status."""
        while True:
            found, answer = await self.http(port, path)
            if found == status:
                return answer
            await TwistedScheduler(reactor).sleep(0.02)

    async def test_refuses_a_second_process_of_the_same_name(self) -> None:
        dsn = await fresh_database(self)
        port = free_port()
        text = f"database: {dsn}\n"
        self.start("master", "-c", self.configure("one", f"{text}http: {{port: {port}}}\n"))
        await self.until(port, "/ready", 200)
        second = await self.run_command("master", "-c", self.configure("two", text))
        self.assertEqual(second.code, 1)
        self.assertRegex(
            second.err,
            r"(?m)^synrepl: error: writer 'master' of stream 'orders' is held by 'master' \(process \d+",
        )

    async def test_a_second_master_changes_nothing_before_it_is_refused(self) -> None:
        dsn = await fresh_database(self)
        port = free_port()
        text = f"database: {dsn}\n"
        self.start("master", "-c", self.configure("one", f"{text}http: {{port: {port}}}\n"))
        await self.until(port, "/ready", 200)
        before = self.relations(dsn)
        path = self.directory / "two.yaml"
        columns = "{order_id: text, note: 'text?'}"  # one more; and all streams of Synapse
        path.write_text(
            f"server_name: example.com\n{text}streams: [{{name: orders, columns: {columns}}}]\n"
        )
        second = await self.run_command("master", "-c", path)
        self.assertEqual(second.code, 1)
        self.assertIn("is held by 'master' (process ", second.err)
        self.assertEqual(self.relations(dsn), before)
        # Nor does one whose streams are all others than those of the first.
        path.write_text(
            f"server_name: example.com\n{text}catalogue: none\n"
            "streams: [{name: others, columns: {a: text}}]\n"
        )
        second = await self.run_command("master", "-c", path)
        self.assertEqual(second.code, 1)
        self.assertIn("is held by 'master' (process ", second.err)
        self.assertEqual(self.relations(dsn), before)

    async def test_a_master_that_is_refused_leaves_an_older_schema_as_it_is(self) -> None:
        dsn = await fresh_database(self)
        database = PostgresDatabase(reactor, dsn, "old")
        await migrate(database, Schema(load().migrations[:3], None))
        await database.close()
        with closing(psycopg2.connect(dsn)) as first, first.cursor() as cursor:
            cursor.execute(
                "INSERT INTO synrepl._streams (stream, counts_down, sequence) VALUES ('a', false, '');"
                "INSERT INTO synrepl._writers (stream, writer, holder) VALUES ('a', 'master', 'an old one')"
                " RETURNING number"
            )
            (number,) = cursor.fetchone()
            first.commit()
            cursor.execute("SELECT pg_advisory_lock(synrepl.lock_class(%s), 0)", (number,))
            before = self.relations(dsn)
            path = self.configure("two", f"database: {dsn}\n")
            second = await self.run_command("master", "-c", path)
            self.assertEqual(second.code, 1)
            self.assertIn("writer 'master' of stream 'a' is held by an old one", second.err)
            self.assertEqual(self.relations(dsn), before)

    async def test_of_two_masters_that_start_at_once_one_is_refused(self) -> None:
        dsn = await fresh_database(self)
        other = await open_session(reactor, dsn, "the other")
        try:
            await other.run(lambda txn: claim_startup(txn, "master"))
            second = await self.run_command(
                "master", "-c", self.configure("two", f"database: {dsn}\n")
            )
        finally:
            await other.close()
        self.assertEqual(second.code, 1)
        self.assertIn("the other, Postgres backend", second.err)
        self.assertIn("is just starting as 'master', too", second.err)
        self.assertEqual(self.relations(dsn), [])

    def relations(self, dsn: str) -> list[tuple[str, ...]]:
        """All tables, columns and migrations of a database."""
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_name, column_name FROM information_schema.columns"
                " WHERE table_schema = 'synrepl' ORDER BY 1, 2"
            )
            return cursor.fetchall()

    async def test_a_process_of_another_server_is_refused(self) -> None:
        dsn = await fresh_database(self)
        port, http = free_port(), free_port()
        text = f"database: {dsn}\n"
        first = self.start(
            "master",
            *("-c", self.configure("one", f"{text}http: {{port: {http}}}\n")),
        )
        await self.until(http, "/ready", 200)
        path = self.directory / "two.yaml"
        other = f"server_name: two.example\n{ORDERS}{text}"
        worker = f"{other}instance_name: w1\nmaster: {{port: {port}}}\n"
        words = "server_name: 'two.example' is not the server of this database, which belongs to"
        for content, command in (
            (other, ("master",)),
            (other.replace("orders", "more"), ("master",)),
            (worker, ("worker",)),
            (other, ("writers", "add", "orders", "billing")),
            (other, ("writers", "drain", "orders", "sql")),
            (other, ("schema", "--apply", "all")),
            (other, ("schema", "grant", "postgres", "--append")),
            (other, ("doctor", "database", "--fix")),
        ):
            path.write_text(content)
            done = await self.run_command(*command, "-c", path)
            self.assertEqual(done.code, 2, (command, done))
            self.assertIn(f"{words} 'example.com'", done.err)
        self.assertEqual((await self.http(http, "/ready"))[0], 200)
        # Renaming is refused while a process runs, and by anybody who does not know the name.
        path.write_text(other)
        rename = ("schema", "rename-server", "-c", path, "--from")
        done = await self.run_command(*rename, "example.com")
        self.assertEqual(done.code, 1)
        self.assertRegex(
            done.err, r"'master' \(process \d+ .* runs on this database, as 'example.com'"
        )
        first.signal("TERM")
        self.assertEqual((await first.done()).code, 0)
        done = await self.run_command(*rename, "three.example")
        self.assertEqual(done.code, 1)
        self.assertIn("belongs to 'example.com', not to 'three.example'", done.err)
        done = await self.run_command(*rename, "example.com")
        self.assertEqual((done.code, done.out), (0, "the database belongs to two.example now\n"))
        done = await self.run_command("schema", "-c", path, "--json")
        self.assertEqual(json.loads(done.out)["server_name"], "two.example")
        done = await self.run_command("master", "-c", self.directory / "one.yaml")
        self.assertEqual(done.code, 2)
        self.assertIn("'example.com' is not the server of this database", done.err)

    async def test_names_a_port_in_use(self) -> None:
        dsn = await fresh_database(self)
        port, taken = free_port(), free_port()
        text = f"database: {dsn}\nlisteners: [{{port: {taken}}}]\n"
        self.start("master", "-c", self.configure("one", f"{text}http: {{port: {port}}}\n"))
        await self.until(port, "/ready", 200)
        other = f"database: {await fresh_database(self)}\nlisteners: [{{port: {taken}}}]\n"
        second = await self.run_command("master", "-c", self.configure("two", other))
        self.assertEqual(second.code, 2)
        self.assertIn(f"synrepl: error: listeners: port {taken} on 127.0.0.1", second.err)

    async def test_refuses_a_file_in_place_of_the_data_directory(self) -> None:
        (self.directory / "data").write_text("")
        path = self.configure("master", "data_dir: data\ndatabase: embedded\n")
        done = await self.run_command("master", "-c", path)
        self.assertEqual(done.code, 2)
        self.assertRegex(done.err, r"(?m)^synrepl: error: the data folder .*/data cannot be used: ")
        self.assertNotIn("Traceback", done.err)

    async def test_a_worker_says_when_it_cannot_read_where_the_embedded_database_is(self) -> None:
        (self.directory / "data" / "postgres.dsn").mkdir(parents=True)
        common = "data_dir: data\ndatabase: embedded\n"
        worker = f"{common}instance_name: worker1\nmaster: {{port: {free_port()}}}\n"
        done = await self.run_command("worker", "-c", self.configure("worker", worker))
        self.assertEqual(done.code, 2)
        self.assertRegex(
            done.err, "synrepl: error: the data folder .*/postgres.dsn: Is a directory"
        )

    async def test_a_wrong_password_ends_the_start(self) -> None:
        dsn = await fresh_database(self)
        wrong = extensions.make_dsn(**{**extensions.parse_dsn(dsn), "password": "hunter2"})
        worker = f"instance_name: worker1\nmaster: {{port: {free_port()}}}\n"
        secret = self.directory / "synapse.dsn"
        secret.write_text(wrong)
        secret.chmod(0o600)
        foreign = worker.replace("}", ", foreign: true, database_path: synapse.dsn}")
        for role, text in (
            ("master", f"database: {wrong}\n"),
            ("worker", f"database: {wrong}\n{worker}"),
            ("worker", foreign),
        ):
            done = await self.run_command(role, "-c", self.configure(role, text))
            self.assertEqual(done.code, 1)
            self.assertRegex(
                done.err,
                r"(?m)^synrepl: error: the database at host=127.0.0.1 .* refused the connection: "
                ".*password authentication failed",
            )
            self.assertNotIn("hunter2", done.err)

    async def test_reports_a_password_that_becomes_wrong(self) -> None:
        dsn = await fresh_database(self)
        changed = "ALTER ROLE becomes_wrong PASSWORD 'changed'"
        restored = "ALTER ROLE becomes_wrong PASSWORD 'sesame'"
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='becomes_wrong'"
        )
        query_one(dsn, "CREATE ROLE becomes_wrong SUPERUSER LOGIN PASSWORD 'sesame'")
        self.addCleanup(query_one, dsn, "DROP ROLE becomes_wrong")
        self.addCleanup(query_one, dsn, "DROP OWNED BY becomes_wrong CASCADE")
        given = {**extensions.parse_dsn(dsn), "user": "becomes_wrong", "password": "sesame"}
        ports = {"master": free_port(), "worker": free_port()}
        listener = free_port()
        own = {
            "master": f"listeners: [{{port: {listener}}}]\n",
            "worker": f"instance_name: worker1\nmaster: {{port: {listener}}}\n",
        }
        processes = {}
        for role, port in ports.items():
            text = f"database: {extensions.make_dsn(**given)}\nhttp: {{port: {port}}}\n{own[role]}"
            processes[role] = self.start(role, "-c", self.configure(role, text))
            await self.until(port, "/ready", 200)
        query_one(dsn, changed)
        query_one(dsn, ended)
        for role, port in ports.items():
            while "refused the connection" not in str((await self.http(port, "/ready"))[1]):
                await TwistedScheduler(reactor).sleep(0.05)
            await processes[role].stderr_containing("password authentication failed")
        query_one(dsn, restored)
        for port in ports.values():
            await self.until(port, "/ready", 200)
        for process in processes.values():
            process.signal("TERM")
            await process.done()

    async def test_survives_the_death_of_the_embedded_database(self) -> None:
        port, listener = free_port(), free_port()
        common = "data_dir: data\ndatabase: embedded\n"
        master = self.configure(
            "master", f"{common}http: {{port: {port}}}\nlisteners: [{{port: {listener}}}]\n"
        )
        seen = self.directory / "seen"
        worker = self.configure(
            "worker",
            f"{common}instance_name: worker1\nmaster: {{port: {listener}}}\n"
            f"handlers: [{{class: 'tests.daemon.recording_handlers:RowRecorder', config: {{path: {seen}}}}}]\n",
        )
        self.start("master", "-c", master)
        self.start("worker", "-c", worker)
        await self.until(port, "/ready", 200)
        self.assertEqual((await self.http(port, "/streams/orders/facts", b'[["a"]]'))[0], 200)
        pid_file = self.directory / "data" / "postgres" / "postmaster.pid"
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        while True:  # refused while it is away, and served again without help
            status, answer = await self.http(port, "/streams/orders/facts", b'[["b"]]')
            if status == 200:
                break
            self.assertIn(status, (500, 503), answer)
        await self.until(port, "/ready", 200)
        while not seen.exists() or not {"a", "b"} <= set(seen.read_text().split()):
            await TwistedScheduler(reactor).sleep(0.02)

    async def test_facts_are_trimmed_once_the_awaited_worker_has_them(self) -> None:
        dsn, port, listener = await fresh_database(self), free_port(), free_port()
        common = f"server_name: example.com\ndatabase: {dsn}\ncatalogue: [caches]\n"
        master, worker = self.directory / "master.yaml", self.directory / "worker.yaml"
        master.write_text(
            f"{common}http: {{port: {port}}}\nlisteners: [{{port: {listener}}}]\n"
            "retention: {every: 50ms, keep: 0s}\n"
        )
        worker.write_text(f"{common}instance_name: worker1\nmaster: {{port: {listener}}}\n")
        self.start("master", "-c", master, in_new_process=True)
        await self.until(port, "/ready", 200)
        first = self.start("worker", "-c", worker, in_new_process=True)
        while not (await self.http(port, "/status"))[1]["followers"]:
            await TwistedScheduler(reactor).sleep(0.02)
        first.signal("KILL")
        await first.done()
        status, _ = await self.http(port, "/streams/caches/facts", b'[["f", ["k"], 1]]')
        self.assertEqual(status, 200)
        await self.until_trimmed(port, {"upto": 0, "rows": 0, "held_by": "worker1"})
        self.start("worker", "-c", worker)
        await self.until_trimmed(port, {"upto": 1, "rows": 1, "held_by": None})

    async def until_trimmed(self, port: int, wanted: dict[str, Any]) -> None:
        while (await self.http(port, "/status"))[1]["streams"]["caches"]["trimmed"] != wanted:
            await TwistedScheduler(reactor).sleep(0.02)

    async def test_runs_under_twistd(self) -> None:
        port = free_port()
        path = self.configure(
            "master", f"database: {await fresh_database(self)}\nhttp: {{port: {port}}}\n"
        )
        twistd = self.twistd("synrepl-master", path)
        await self.until(port, "/ready", 200)
        twistd.signal("TERM")
        done = await twistd.done()
        self.assertEqual(done.code, -signal.SIGTERM)  # twistd ends by what it was sent
        self.assertIn("Server Shut Down.", done.out)

    def twistd(self, plugin: str, path: Path) -> Command:
        """Start a plugin of twistd in the foreground."""
        twistd = Command()
        arguments = [
            sys.executable, "-c", "from twisted.scripts.twistd import run; run()",
            "--nodaemon", "--pidfile=pid", plugin, "-c", str(path),
        ]  # fmt: skip
        any_reactor: Any = reactor
        any_reactor.spawnProcess(
            twistd,
            sys.executable,
            arguments,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            path=str(self.directory),
        )
        self.addCleanup(lambda: Deferred.fromCoroutine(twistd.kill()))
        return twistd

    async def test_twistd_ends_with_an_exit_status_when_it_cannot_start(self) -> None:
        own = (
            "instance_name: worker1\nmaster: {port: 1, http_url: 'http://127.0.0.1:1'}\n"
            "catch_up: http\n"
        )
        lacks_path = f"{own}handlers: ['tests.daemon.recording_handlers:RowRecorder']\n"
        worker = self.configure("worker", lacks_path)
        taken = free_port()
        text = f"database: {await fresh_database(self)}\nlisteners: [{{port: {taken}}}]\n"
        port = free_port()
        self.start("master", "-c", self.configure("one", f"{text}http: {{port: {port}}}\n"))
        await self.until(port, "/ready", 200)
        other = f"database: {await fresh_database(self)}\nlisteners: [{{port: {taken}}}]\n"
        for plugin, path, code, message in (
            ("synrepl-master", self.configure("none", "a: 1\nb: 2\n"), 2, "no setting 'b'"),
            ("synrepl-worker", worker, 2, "missing a required argument: 'path'"),
            # Found out before twistd runs the reactor:
            (
                "synrepl-worker",
                self.configure("same", f"{own}http: {{port: {port}}}\n"),
                2,
                "http: port",
            ),
            ("synrepl-master", self.configure("two", text), 1, "is held by 'master'"),
            ("synrepl-master", self.configure("three", other), 2, f"listeners: port {taken}"),
        ):
            done = await self.twistd(plugin, path).done()
            output = done.out + done.err
            self.assertEqual(done.code, code, output)
            self.assertIn("synrepl: error: ", output)
            self.assertIn(message, output)
            self.assertNotIn("Traceback", output)
            self.assertFalse((self.directory / "pid").exists())

    def test_twistd_requires_a_file(self) -> None:
        options = Options()
        self.assertRaises(UsageError, options.parseOptions, [])
