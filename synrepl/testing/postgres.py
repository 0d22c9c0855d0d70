"""A real PostgreSQL for tests.

    class Orders(TestCase):
        async def test_append(self):
            dsn = await fresh_database(self)

There is one server per test process. The first test that needs it starts it, in a
directory that is removed when the process ends. It does not outlive the process,
however that ends. Nothing is synced to disk.

With ``SYNREPL_TEST_SYSTEM_POSTGRES=1`` in the environment, an installed PostgreSQL is
used instead of the pip package's.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.utils import getProcessOutputAndValue

from synrepl.core.errors import StorageError
from synrepl.storage.launch.postgres import PostgresServer

Prepare = Callable[[str], Awaitable[object]]

#: Durability settings that are turned off to make tests fast.
_DURABILITY_SETTINGS = ("fsync", "full_page_writes", "wal_init_zero")

_numbers = count(1)
_spare: list[str] = []

_EMPTY = """
    DO $$
    DECLARE schema_name text;
    BEGIN
        PERFORM pg_terminate_backend(pid, 10000) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid();
        FOR schema_name IN SELECT nspname FROM pg_namespace
            WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
        LOOP
            EXECUTE format('DROP SCHEMA %I CASCADE', schema_name);
        END LOOP;
        EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
        PERFORM lo_unlink(oid) FROM pg_largeobject_metadata;
        CREATE SCHEMA public AUTHORIZATION pg_database_owner;
        GRANT USAGE ON SCHEMA public TO PUBLIC;
    END
    $$
"""


class DatabaseNotMade(StorageError):
    """{program} failed: {reason}"""


class HasCleanups(Protocol):
    """A trial test case."""

    def addCleanup(self, call: Callable[..., object], /, *args: object) -> object:
        """Call ``call(*args)`` when the test is over, and await its result."""


@cache
def server() -> PostgresServer:
    """This process's server, started if necessary. Blocks the first time; for the main thread."""
    directory = Path(mkdtemp(prefix="synrepl-test-"))
    found = PostgresServer(
        directory,
        prefer_system=os.environ.get("SYNREPL_TEST_SYSTEM_POSTGRES") == "1",
    )

    def stop() -> None:
        found.stop()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    found.start()
    # Not on the command line, so that a test can change them.
    _configure(found, "SET {} = off")
    return found


async def with_durable_server(case: HasCleanups) -> None:
    """Make the server durable, as in production, until a test is over."""
    case.addCleanup(_configure, server(), "SET {} = off")
    _configure(server(), "RESET {}")
    # New connections have the settings once the postmaster has reloaded its files.
    while (await _run("psql", "-X", "-A", "-t", "-c", "SHOW fsync", "postgres")).strip() != "on":
        pass


def _configure(running: PostgresServer, change: str) -> None:
    """Alter the durability settings; blocks."""
    settings = [f"ALTER SYSTEM {change.format(name)}" for name in _DURABILITY_SETTINGS]
    statements = [*settings, "SELECT pg_reload_conf()"]
    subprocess.run(  # noqa: S603
        [running.program("psql"), "-X", "-q", *(f"-c{each}" for each in statements), "postgres"],
        env={"PATH": os.defpath, **running.client_environment()},
        check=True,
        capture_output=True,
    )


async def fresh_database(case: HasCleanups | None = None, prepare: Prepare | None = None) -> str:
    """A database for one test's exclusive use, empty or prepared.

    :param case: the test. When it is over, remaining connections are terminated, and
        the database is emptied for another test, which is ten times faster than
        creating one. With None, the database stays until the process ends
    :param prepare: an asynchronous function that gets the DSN and fills the database
    :returns: its DSN
    """
    if _spare:
        name = _spare.pop()
    else:
        name = f"test_{next(_numbers)}"
        await _run("createdb", "--template=template0", name)
    if case is not None:
        case.addCleanup(lambda: Deferred.fromCoroutine(_recycle(name)))
    if prepare is not None:
        await prepare(_dsn(name))
    return _dsn(name)


async def _recycle(name: str) -> None:
    await _run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", _EMPTY, name)
    _spare.append(name)


def _dsn(name: str) -> str:
    return f"{server().dsn.rpartition('/')[0]}/{name}"


async def _run(program: str, *arguments: str) -> str:
    running = server()
    environment = {"PATH": os.defpath, **running.client_environment()}
    path = os.fsencode(running.program(program))
    output, errors, status = await getProcessOutputAndValue(path, arguments, environment)
    if status:
        reason = (errors or output).decode(errors="replace").strip()
        raise DatabaseNotMade(program=program, reason=reason)
    said: str = output.decode(errors="replace")
    return said
