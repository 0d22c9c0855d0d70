"""The PostgreSQL that belongs to this process: real starts, real crashes."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import SynchronousTestCase, TestCase

import synrepl
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.embedded import EmbeddedPostgres
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.storage.launch.data_dir import DataDirFull, DataDirUnusable
from synrepl.storage.launch.postgres import (
    DataDirTaken,
    OtherMajorVersion,
    PasswordMissing,
    PostgresPortTaken,
    PostgresServer,
    StartFailed,
    account_for,
)
from synrepl.storage.launch.postgres_binaries import (
    BinariesMissing,
    DirectoryUnreachable,
    find_binaries,
)
from tests.driver.embedded_server import existing_data_dir, new_data_dir, query_one
from tests.support.descriptors import descriptor_of

ROOT = Path(synrepl.__file__).parent.parent

#: A process that runs the server in argv[1] and is killed some day.
OWNER = """
import sys, pathlib
from synrepl.storage.launch.postgres import PostgresServer
server = PostgresServer(pathlib.Path(sys.argv[1]), fsync=False)
server.start()
print(server.child.pid, flush=True)
sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class FolderCase(SynchronousTestCase):
    """The blocking server in ``self.folder``."""

    folder: Path

    def server(self, **options: Any) -> PostgresServer:
        server = PostgresServer(self.folder, **{"fsync": False, **options})
        self.addCleanup(server.stop)
        return server


class UnusableDataDir(FolderCase):
    """A folder that cannot be worked in is named, with what is wrong with it."""

    def setUp(self) -> None:
        self.folder = new_data_dir(self)

    def as_other_user(self) -> None:
        """Root may write everywhere, so the test goes on as somebody else."""
        if os.geteuid() == 0:
            os.seteuid(65534)
            self.addCleanup(os.seteuid, 0)

    def refused(self, message: str) -> None:
        error = self.assertRaises(DataDirUnusable, self.server().start)
        self.assertIn(str(self.folder), str(error))
        self.assertIn(message, str(error))

    def test_refuses_a_file_in_place_of_the_directory(self) -> None:
        self.folder.write_text("")
        self.refused("File exists")

    def test_refuses_a_file_in_place_of_the_parent(self) -> None:
        self.folder.write_text("")
        self.folder = self.folder / "data"
        self.refused("Not a directory")

    def test_refuses_a_parent_that_is_not_writable(self) -> None:
        self.folder.parent.chmod(0o555)
        self.addCleanup(self.folder.parent.chmod, 0o755)
        self.as_other_user()
        self.refused("Permission denied")

    def test_refuses_a_read_only_directory(self) -> None:
        self.folder.mkdir(mode=0o555)
        self.as_other_user()
        self.refused("postgres.lock: Permission denied")

    def test_a_full_disk_is_reported_and_leaves_nothing_in_the_way(self) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        error = self.assertRaises(DataDirFull, self.server().start)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertIn(f"there is no room for the data folder {self.folder}", str(error))
        self.server().start()  # nothing was left behind that is in the way


class NewCluster(FolderCase):
    """In a folder that is not there yet."""

    def setUp(self) -> None:
        self.folder = new_data_dir(self)

    def test_keeps_data_and_password_over_a_restart(self) -> None:
        server = self.server()
        dsn = server.start()
        query_one(dsn, "CREATE TABLE t AS SELECT 5 AS n")
        server.stop()
        again = self.server()
        self.assertEqual(query_one(again.start(), "SELECT n FROM t"), 5)
        self.assertEqual(
            extensions.parse_dsn(dsn)["password"], extensions.parse_dsn(again.dsn)["password"]
        )

    def test_files_with_secrets_are_private_and_the_dsn_file_connects(self) -> None:
        server = self.server()
        file = self.folder / "postgres.dsn"
        dsn = server.start()
        self.assertEqual(file.read_text().strip(), dsn)
        self.assertEqual(query_one(file.read_text().strip(), "SELECT 1"), 1)
        for name in ("postgres.dsn", "postgres.password", "postgres.log", "postgres.lock"):
            self.assertEqual(mode(self.folder / name), 0o600, name)
        self.assertEqual(mode(self.folder / "postgres"), 0o700)
        server.stop()
        self.assertFalse(file.exists())

    def test_an_incomplete_cluster_is_recreated(self) -> None:
        half = self.folder / "postgres.new"
        half.mkdir(parents=True)
        (half / "PG_VERSION").write_text("18")
        self.assertEqual(query_one(self.server().start(), "SELECT 1"), 1)
        self.assertFalse(half.exists())

    def test_refuses_a_directory_that_other_users_cannot_enter(self) -> None:
        if os.geteuid() != 0:
            return  # then there is nobody else
        self.folder.parent.chmod(0o700)
        with self.assertRaises(DirectoryUnreachable) as caught:
            self.server().start()
        self.assertIn(str(self.folder), str(caught.exception))

    def test_binaries_that_nobody_else_may_read_are_copied(self) -> None:
        if os.geteuid() != 0:
            return
        found = find_binaries(prefer_system=False)
        hidden = self.folder.parent / "hidden"
        hidden.mkdir(mode=0o700)
        package = found.parent.parent
        for name in (package.name, f"{package.name}.libs"):
            (hidden / name).symlink_to(package.with_name(name))
        hidden_bin = hidden / package.name / found.parent.name / "bin"
        self.patch(
            sys.modules["synrepl.storage.launch.postgres"],
            "find_binaries",
            lambda prefer: hidden_bin,
        )
        server = self.server()
        self.assertEqual(query_one(server.start(), "SELECT 1"), 1)
        self.assertTrue(server.program("psql").is_relative_to(self.folder))

    def test_missing_binaries_are_named_with_the_package_to_install(self) -> None:
        self.patch(sys.modules["importlib.util"], "find_spec", lambda name: None)
        with self.assertRaises(BinariesMissing) as caught:
            find_binaries(prefer_system=False)
        self.assertIn("pip install 'synrepl[embedded]'", str(caught.exception))


class ExistingCluster(FolderCase):
    """In a folder that holds a cluster."""

    def setUp(self) -> None:
        self.folder = existing_data_dir()

    def change(self, name: str, text: str) -> None:
        """Append to a file, or replace it when it is a short one, for this test."""
        path = self.folder / name
        before = path.read_bytes()
        self.addCleanup(path.write_bytes, before)
        path.write_text((before.decode() if len(before) > 100 else "") + text)

    def test_only_with_the_password_and_only_on_loopback(self) -> None:
        dsn = self.server().start()
        parts = extensions.parse_dsn(dsn)
        for password in ("", "postgres", "x" * 32):
            with self.assertRaises(psycopg2.OperationalError):
                psycopg2.connect(**{**parts, "password": password})
        self.assertEqual(query_one(dsn, "SHOW listen_addresses"), "127.0.0.1")
        self.assertEqual(query_one(dsn, "SHOW unix_socket_directories"), "")
        self.assertEqual(query_one(dsn, "SHOW password_encryption"), "scram-sha-256")
        methods = "SELECT string_agg(DISTINCT auth_method, ',') FROM pg_hba_file_rules"
        self.assertEqual(query_one(dsn, methods), "scram-sha-256")

    def test_the_server_has_the_expected_settings(self) -> None:
        dsn = self.server(fsync=True).start()
        for name, value in {
            "shared_buffers": "64MB",
            "max_connections": "60",
            "fsync": "on",
            "full_page_writes": "on",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "timezone": "UTC",
        }.items():
            self.assertEqual(query_one(dsn, f"SHOW {name}"), value, name)

    def test_second_owner_is_refused(self) -> None:
        server = self.server()
        dsn = server.start()
        with self.assertRaises(DataDirTaken) as caught:
            self.server().start()
        self.assertIn(f"process {os.getpid()}", str(caught.exception))
        self.assertEqual(query_one(dsn, "SELECT 1"), 1)
        self.assertTrue((self.folder / "postgres.dsn").exists())

    def test_uses_the_requested_port(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with self.assertRaises(PostgresPortTaken) as caught:
                self.server(port=port).start()
            self.assertIn(str(port), str(caught.exception))
        self.assertIn(f":{port}/", self.server(port=port).start())

    def test_retries_when_a_free_port_is_taken_meanwhile(self) -> None:
        server = self.server()
        port = int(extensions.parse_dsn(server.start())["port"])
        server.stop()  # it keeps the port, which others may take now
        with socket.create_server(("127.0.0.1", port)):
            self.assertEqual(query_one(server.start(), "SELECT 1"), 1)
            self.assertNotIn(f":{port}/", server.dsn)

    def test_refuses_data_of_another_major_version(self) -> None:
        self.change("postgres/PG_VERSION", "11\n")
        with self.assertRaises(OtherMajorVersion) as caught:
            self.server().start()
        self.assertIn("PostgreSQL 11", str(caught.exception))

    def test_refuses_a_cluster_whose_password_file_is_lost(self) -> None:
        self.change("postgres.password", "")
        (self.folder / "postgres.password").unlink()
        with self.assertRaises(PasswordMissing):
            self.server().start()

    def test_a_failed_start_shows_the_log_and_releases_the_directory(self) -> None:
        self.change("postgres/postgresql.conf", "no_such_setting = 1\n")
        with self.assertRaises(StartFailed) as caught:
            self.server().start()
        self.assertIn("no_such_setting", str(caught.exception))
        with self.assertRaises(StartFailed):
            self.server().start()

    def test_old_log_is_kept_once(self) -> None:
        for _ in range(3):
            server = self.server()
            server.start()
            server.stop()
        logs = sorted(path.name for path in self.folder.glob("postgres.log*"))
        self.assertEqual(logs, ["postgres.log", "postgres.log.1"])


class LeftoverServers(SynchronousTestCase):
    """What a former owner left behind."""

    def setUp(self) -> None:
        self.folder = existing_data_dir()
        self.server = PostgresServer(self.folder, fsync=False)
        self.addCleanup(self.server.stop)

    def owner(self) -> tuple[subprocess.Popen[str], int]:
        """Another process that runs the server, and the server's process ID."""
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(self.folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    def test_server_dies_with_its_owner(self) -> None:
        process, pid = self.owner()
        handle = os.pidfd_open(pid)
        self.addCleanup(os.close, handle)
        process.kill()
        self.assertTrue(select.select([handle], [], [], 30)[0])
        self.assertEqual(query_one(self.server.start(), "SELECT 1"), 1)

    def test_second_owner_process_is_refused_by_name(self) -> None:
        process, _ = self.owner()
        with self.assertRaises(DataDirTaken) as caught:
            self.server.start()
        self.assertIn(f"process {process.pid}", str(caught.exception))

    def test_a_server_that_outlived_its_owner_is_stopped_first(self) -> None:
        former = PostgresServer(self.folder, fsync=False)
        query_one(former.start(), "CREATE TABLE outlived AS SELECT 5 AS n")
        assert former.child is not None
        os.close(
            descriptor_of(self.folder / "postgres.lock")
        )  # as if the owner had died, and the server had not heard
        self.assertEqual(query_one(self.server.start(), "SELECT n FROM outlived"), 5)
        self.assertTrue(former.child.gone())

    def test_ignores_the_pid_file_of_a_dead_process(self) -> None:
        self.server.start()
        assert self.server.child is not None
        self.server.child.end([(signal.SIGKILL, 30.0)])
        self.assertTrue((self.folder / "postgres" / "postmaster.pid").exists())
        self.server.stop()
        self.assertEqual(query_one(self.server.start(), "SELECT 1"), 1)

    def test_ignores_a_pid_file_whose_pid_was_reused(self) -> None:
        self.server.start()
        assert self.server.child is not None
        account = account_for(self.folder)
        self.server.child.end([(signal.SIGKILL, 30.0)])
        self.server.stop()
        # Of the same user: from another's, Postgres would see itself that it is stale.
        other = subprocess.Popen(["sleep", "600"], user=account.uid, group=account.gid)
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        file = self.folder / "postgres" / "postmaster.pid"
        lines = file.read_text().splitlines()
        file.write_text("\n".join([str(other.pid), *lines[1:], ""]))
        self.assertEqual(query_one(self.server.start(), "SELECT 1"), 1)
        self.assertIsNone(other.poll())


class EmbeddedPostgresRestarts(TestCase):
    """The server under the reactor."""

    timeout = 60

    async def setUp(self) -> None:
        self.crashes: list[str] = []
        self.crashed: Deferred[None] = Deferred()
        self.folder = existing_data_dir()
        self.postgres = EmbeddedPostgres(
            reactor,
            self.folder,
            on_crash=self.on_crash,
        )
        self.dsn = await self.postgres.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(self.postgres.stop()))

    def on_crash(self, reason: str) -> None:
        self.crashes.append(reason)
        if not self.crashed.called:
            self.crashed.callback(None)

    def kill(self) -> None:
        assert self.postgres.pid is not None
        os.kill(self.postgres.pid, signal.SIGKILL)

    def database(self) -> PostgresDatabase:
        database = PostgresDatabase(reactor, self.dsn, "tests")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        return database

    async def test_a_kill_under_load_causes_no_wrong_answer(self) -> None:
        database = self.database()
        await database.run("table", lambda txn: txn.execute("CREATE TABLE load (id int)"))
        total, kill_at = 300, {50, 150}
        written: set[int] = set()
        unknown: set[int] = set()

        async def write(key: int) -> None:
            try:
                await database.run(
                    "insert", lambda txn: txn.execute("INSERT INTO load VALUES (%s)", (key,))
                )
            except CommitUnknown:
                unknown.add(key)
                return
            written.add(key)
            if len(written) in kill_at:
                self.kill()

        await gatherResults([Deferred.fromCoroutine(write(key)) for key in range(total)])

        def read(txn: Transaction) -> list[int]:
            return [row[0] for row in txn.execute("SELECT id FROM load")]

        found = await database.run("read", read, read_only=True)
        self.assertEqual(written | unknown, set(range(total)))
        self.assertEqual(len(found), len(set(found)), "a row is there twice")
        self.assertEqual(written - set(found), set(), "acknowledged and missing")
        # At most what was being committed on the eight connections, at each of the crashes.
        self.assertLessEqual(len(unknown), 8 * len(kill_at))
        self.assertEqual(len(self.crashes), len(kill_at))
        self.assertIn("SIGKILL", self.crashes[0])

    async def test_a_stop_is_not_reported_as_a_crash(self) -> None:
        await self.postgres.stop()
        self.assertEqual(self.crashes, [])
        self.assertIsNone(self.postgres.pid)
        self.assertFalse((self.folder / "postgres.dsn").exists())

    async def test_can_be_stopped_during_a_restart(self) -> None:
        self.kill()
        await self.crashed
        await self.postgres.stop()
        self.assertIsNone(self.postgres.pid)

    async def test_second_start_on_the_folder_is_refused(self) -> None:
        other = EmbeddedPostgres(reactor, self.folder)
        with self.assertRaises(DataDirTaken):
            await other.start()
        await other.stop()
