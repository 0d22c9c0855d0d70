"""A test case with a real database, and processes that use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg2
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import PostgresSession, open_session
from synrepl.adapters.postgres.short_transactions import PostgresShortTransactions
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.storage.database import DatabaseSession
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.lease import PostgresLease
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.tables import ensure_tables
from synrepl.testing.postgres import DatabaseTemplate
from tests.storage.samples import FEW

reactor: Any = _reactor


async def prepare(dsn: str) -> None:
    """Fill a database with the schema and the tables of a few streams."""
    database = PostgresDatabase(reactor, dsn, "prepare")
    await migrate(database, load())
    await database.run("ensure_tables", lambda txn: ensure_tables(txn, FEW))
    await database.close()


async def _migrate(dsn: str) -> None:
    database = PostgresDatabase(reactor, dsn, "prepare")
    await migrate(database, load())
    await database.close()


#: What :func:`prepare` makes.
PREPARED = DatabaseTemplate(prepare)

#: The schema and no more, as a master leaves it that begins without streams.
MIGRATED = DatabaseTemplate(_migrate)


class Process:
    """The resources of one process: connections, a store, and the sessions of its leases.

    :param scheduler: for the store's waiting
    """

    def __init__(self, dsn: str, name: str, scheduler: Any = None) -> None:
        self.dsn = dsn
        self.name = name
        self.scheduler = TwistedScheduler(reactor)
        self.database = PostgresDatabase(reactor, dsn, name)
        self.sessions: list[PostgresSession] = []
        self.statements = PostgresSingles(reactor, dsn, name)
        self.short = PostgresShortTransactions(reactor, dsn, name, self.database.was_committed)
        self.store = PostgresStore(
            scheduler or self.scheduler,
            self.database,
            self.open_session,
            name,
            statements=self.statements,
            short=self.short,
        )

    async def open_session(self) -> DatabaseSession:
        """Open a separate connection for a lease."""
        session = await open_session(reactor, self.dsn, self.name)
        self.sessions.append(session)
        return session

    def session_of(self, lease: PostgresLease) -> PostgresSession:
        """The session behind a lease of this process."""
        return next(s for s in self.sessions if s.backend_pid == lease.backend_pid)

    async def close(self) -> None:
        """Stop waiting calls, and close every connection."""
        self.scheduler.stop()
        for session in self.sessions:
            await session.close()
        self.statements.close()
        self.short.close()
        await self.database.close()
        self.scheduler.stop()  # what was under way may have begun to wait


class PostgresCase(TestCase):
    """A test case with a separate database for each test."""

    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        self.dsn = await self.make_database()

    async def make_database(self) -> str:
        """The test's database, with the tables of this product."""
        return await PREPARED.copy(self)

    def process(self, name: str, scheduler: Any = None) -> Process:
        """A simulated process, closed at the end of the test."""
        process = Process(self.dsn, name, scheduler)
        self.addCleanup(lambda: Deferred.fromCoroutine(process.close()))
        return process

    def connect(self) -> psycopg2.extensions.connection:
        """A plain autocommit connection, closed at the end of the test."""
        connection = psycopg2.connect(self.dsn)
        connection.autocommit = True
        self.addCleanup(connection.close)
        return connection

    def sql(
        self, statement: str, *params: object, on: psycopg2.extensions.connection | None = None
    ) -> Any:
        """Run a statement on a plain connection; return the first cell of its result, if there is one."""
        with (on or self.connect()).cursor() as cursor:
            cursor.execute(statement, params or None)
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]

    async def tick(self) -> None:
        """Let the reactor run."""
        await TwistedScheduler(reactor).sleep(0.005)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, up to the time limit of the test."""
        while not condition():
            await self.tick()
