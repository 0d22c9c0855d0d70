"""A real PostgreSQL for tests.

    class Orders(TestCase):
        async def test_append(self):
            dsn = await fresh_database(self)

Where many tests begin with the same tables and rows, fill a database once, and give each test a
copy of it, which takes 20 ms however it was filled::

    SHOP = DatabaseTemplate(fill_shop)

    class Orders(TestCase):
        async def test_append(self):
            dsn = await SHOP.copy(self)

There is one server per test process. The first test that needs it starts it, in a
directory that is removed when the process ends. It does not outlive the process,
however that ends. Nothing is synced to disk; with 4 GiB free in ``/dev/shm``, and without
``TMPDIR`` in the environment, everything is in memory (:mod:`synrepl.testing.directories`).

With ``SYNREPL_TEST_SYSTEM_POSTGRES=1`` in the environment, an installed PostgreSQL is
used instead of the pip package's.
"""

from __future__ import annotations

import atexit
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import cache
from itertools import count
from typing import Protocol, TypeVar

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThread

from synrepl.core.errors import StorageError
from synrepl.storage.launch.postgres import PostgresServer
from synrepl.testing.directories import server_directory

_T = TypeVar("_T")

Prepare = Callable[[str], Awaitable[object]]

#: Durability settings that are turned off to make tests fast.
_DURABILITY_SETTINGS = ("fsync", "full_page_writes", "wal_init_zero")

_numbers = count(1)


class DatabaseNotMade(StorageError):
    """a database for a test could not be made or dropped: {reason}"""


class HasCleanups(Protocol):
    """A trial test case."""

    def addCleanup(self, call: Callable[..., object], /, *args: object) -> object:
        """Call ``call(*args)`` when the test is over, and await its result."""


@cache
def server() -> PostgresServer:
    """This process's server, started if necessary. Blocks the first time; for the main thread."""
    directory = server_directory()
    found = PostgresServer(
        directory,
        prefer_system=os.environ.get("SYNREPL_TEST_SYSTEM_POSTGRES") == "1",
    )

    def stop() -> None:
        found.stop()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    found.start()
    _connected(found.dsn, _check_passwords_quickly, found.dsn)
    # Not on the command line, so that a test can change them.
    _connected(found.dsn, _configure, "SET {} = off")
    return found


def _check_passwords_quickly(cursor: extensions.cursor, dsn: str) -> None:
    # What makes guessing a password slow is most of the time that a connection takes.
    if cursor.connection.server_version >= 16_00_00:
        cursor.execute("SET scram_iterations = 1")
        password = extensions.parse_dsn(dsn)["password"]
        cursor.execute("ALTER ROLE CURRENT_USER PASSWORD %s", (password,))


async def with_durable_server(case: HasCleanups) -> None:
    """Make the server durable, as in production, until a test is over."""
    case.addCleanup(_in_thread, _configure, "SET {} = off")
    await _in_thread(_configure, "RESET {}")
    # New connections have the settings once the postmaster has reloaded its files.
    while not await _in_thread(_is_durable):
        pass


def _configure(cursor: extensions.cursor, change: str) -> None:
    """Alter the durability settings."""
    for name in _DURABILITY_SETTINGS:
        cursor.execute(f"ALTER SYSTEM {change.format(name)}")
    cursor.execute("SELECT pg_reload_conf()")


def _is_durable(cursor: extensions.cursor) -> bool:
    cursor.execute("SHOW fsync")
    return bool(cursor.fetchone() == ("on",))


async def fresh_database(case: HasCleanups | None = None, prepare: Prepare | None = None) -> str:
    """A database for one test's exclusive use, empty or prepared.

    :param case: the test. When it is over, remaining connections are terminated, and
        the database is dropped. With None, the database stays until the process ends
    :param prepare: an asynchronous function that gets the DSN and fills the database, each
        time anew. What is the same for many tests is faster as a :class:`DatabaseTemplate`
    :returns: its DSN
    :raises DatabaseNotMade: PostgreSQL refused
    """
    name = await _make("template0", case)
    if prepare is not None:
        await prepare(_dsn(name))
    return _dsn(name)


class DatabaseTemplate:
    """A database that is filled once in a test process, when a test first asks, to be copied.

    A copy has everything that is in the database itself, random values that were stored in it
    included. It has no settings of ``ALTER DATABASE`` and no rights on the database as a whole:
    PostgreSQL does not copy those.

    :param prepare: an asynchronous function that gets the DSN of an empty database and fills it.
        If it fails, the test that asked fails, and the next one makes another attempt
    """

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._filling = DeferredLock()
        self._names: list[str] = []

    async def copy(self, case: HasCleanups | None = None) -> str:
        """A copy of the database, for one test's exclusive use.

        :param case: the test. When it is over, remaining connections are terminated, and
            the copy is dropped. With None, it stays until the process ends
        :returns: its DSN
        :raises DatabaseNotMade: PostgreSQL refused
        """
        await self._filling.acquire()
        try:
            if not self._names:
                self._names.append(await self._fill())
        finally:
            self._filling.release()
        return _dsn(await _make(self._names[0], case))

    async def _fill(self) -> str:
        name = await _make("template0", None)
        try:
            await self._prepare(_dsn(name))
            # PostgreSQL copies no database that someone is connected to.
            await _in_thread(_close, name)
        except BaseException:
            await _in_thread(_drop, name)
            raise
        return name


async def _make(template: str, case: HasCleanups | None) -> str:
    name = f"test_{next(_numbers)}"
    await _in_thread(_copy, template, name)
    if case is not None:
        case.addCleanup(_in_thread, _drop, name)
    return name


def _copy(cursor: extensions.cursor, template: str, name: str) -> None:
    # Copied as files, and not through the WAL, it is made in half the time.
    cursor.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")


def _close(cursor: extensions.cursor, name: str) -> None:
    cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    _disconnect(cursor, name)


def _drop(cursor: extensions.cursor, name: str) -> None:
    # DROP DATABASE looks only ten times a second whether connections are gone that were just closed.
    _disconnect(cursor, name)
    cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _disconnect(cursor: extensions.cursor, name: str) -> None:
    """End all connections to a database, and wait until they are gone."""
    while True:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        if not cursor.rowcount:
            return
        time.sleep(0.005)


def _dsn(name: str) -> str:
    return f"{server().dsn.rpartition('/')[0]}/{name}"


def _in_thread(work: Callable[..., _T], *arguments: object) -> Deferred[_T]:
    """Call ``work(cursor, *arguments)`` in a thread; each statement is its own transaction."""
    return deferToThread(_connected, server().dsn, work, *arguments)


def _connected(dsn: str, work: Callable[..., _T], *arguments: object) -> _T:
    try:
        with closing(psycopg2.connect(dsn)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                return work(cursor, *arguments)
    except psycopg2.Error as error:
        raise DatabaseNotMade(reason=str(error).strip()) from error
