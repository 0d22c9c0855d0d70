"""The database server of a simulation: a real PostgreSQL, one transaction at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from itertools import count
from typing import Any, TypeVar

from simulator.rooms.watched_transaction import WatchedTransaction
from synrepl.driver.blocking import BlockingDatabase
from synrepl.driver.connection import DatabaseAddress, PostgresConnection, close
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.migrations import load, migrate
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.tables import ensure_tables
from synrepl.testing.postgres import server

T = TypeVar("T")

_numbers = count(1)

#: Where one transaction would wait for another, the simulation would stand still.
_SETTINGS = {"lock_timeout": "10000"}

#: New statistics would change plans, and with them the order of rows, whenever they happen to be made.
_NO_AUTOVACUUM = """
    DO $$
    DECLARE name text;
    BEGIN
        FOR name IN SELECT oid::regclass FROM pg_class
            WHERE relnamespace = 'synrepl'::regnamespace AND relkind = 'r'
        LOOP
            EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', name);
        END LOOP;
    END
    $$
"""

#: The secrets of rooms differ otherwise, and with them the order of their digests.
_SAME_SECRETS = (
    "ALTER TABLE synrepl._rooms ALTER digest_key SET DEFAULT decode(repeat('5e', 32), 'hex')"
)

#: A ``now()`` that hides PostgreSQL's own from connections which look for functions here first: the time of the
#: simulation, as far as the transaction knows it. Defaults of columns call it by its full name.
_SIMULATED_TIME = """
    CREATE SCHEMA simulated;
    CREATE FUNCTION simulated.now() RETURNS timestamptz STABLE LANGUAGE sql AS $$
        SELECT coalesce(
            to_timestamp(nullif(current_setting('simulated.now', true), '')::float8), pg_catalog.now()
        )
    $$;
    DO $$
    DECLARE found record;
    BEGIN
        FOR found IN SELECT d.adrelid::regclass AS name, a.attname FROM pg_attrdef d
            JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
            WHERE pg_get_expr(d.adbin, d.adrelid) = 'now()'
        LOOP
            EXECUTE format(
                'ALTER TABLE %s ALTER %I SET DEFAULT simulated.now()', found.name, found.attname
            );
        END LOOP;
    END
    $$
"""


class ImmediateDatabase:
    """A blocking database as a :class:`~synrepl.storage.database.Database`.

    :param before: called with each statement before it runs; what it raises, the statement raises
    """

    def __init__(
        self, database: BlockingDatabase, before: Callable[[str], object] = lambda sql: None
    ) -> None:
        self._database = database
        self._before = before

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run work at once."""
        return self._database.run(
            name,
            lambda txn: work(WatchedTransaction(txn, self._before)),
            read_only=read_only,
            isolation=isolation,
        )


def result_of(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing but an :class:`ImmediateDatabase`."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("it waits for something")


def _dsn(name: str) -> str:
    return f"{server().dsn.rpartition('/')[0]}/{name}"


def _run(sql: str) -> None:
    connection = DatabaseAddress(server().dsn, "simulator").connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
    finally:
        close(connection)


@cache
def _template() -> str:
    """The database that the others are copies of: with all tables, and nothing in them."""
    name = "simulated_rooms"
    _run(f"CREATE DATABASE {name} TEMPLATE template0")
    with BlockingDatabase(_dsn(name), "simulator") as database:
        result_of(migrate(ImmediateDatabase(database), load()))
        database.run("tables", lambda txn: ensure_tables(txn, ROOM_STREAMS))
        database.run("no statistics", lambda txn: txn.execute(_NO_AUTOVACUUM) and None)
        database.run("same secrets", lambda txn: txn.execute(_SAME_SECRETS) and None)
        database.run("simulated time", lambda txn: txn.execute(_SIMULATED_TIME) and None)
    return name


class SimulatedServer:
    """A database of its own for one simulation, in the server of this test process.

    :param seconds: returns the time that ``now()`` is for the processes; None: the real one
    :ivar operator: runs transactions for checks, which nothing interrupts
    """

    def __init__(self, seconds: Callable[[], float] | None = None) -> None:
        self._seconds = seconds
        self._name = f"simulated_rooms_{next(_numbers)}"
        _run(f"CREATE DATABASE {self._name} TEMPLATE {_template()}")
        self.operator = BlockingDatabase(_dsn(self._name), "operator")

    def address(self, instance: str) -> DatabaseAddress:
        """Its address, for a process."""
        settings = _SETTINGS
        if self._seconds is not None:
            settings = settings | {"search_path": "simulated,pg_catalog,public"}
        return DatabaseAddress(_dsn(self._name), instance, settings=settings)

    def tell_time(self, txn: Transaction) -> None:
        """Let ``now()`` be the time of the simulation in a transaction."""
        if self._seconds is not None:
            txn.execute("SELECT set_config('simulated.now', %s, true)", (repr(self._seconds()),))

    def end(self, connection: PostgresConnection) -> None:
        """Close a connection; returns when the server has released its locks."""
        if connection.closed:
            return
        pid = connection.info.backend_pid
        close(connection)
        self.operator.run(
            "end a connection",
            lambda txn: (
                txn.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid = %s",
                    (pid,),
                )
                and None
            ),
        )

    def close(self) -> None:
        """Drop the database."""
        self.operator.close()
        _run(f"DROP DATABASE {self._name} WITH (FORCE)")
