"""Opens the database of a process: starts an embedded one, waits for an external one."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from twisted.logger import Logger

from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.adapters.postgres.embedded import EmbeddedPostgres
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.short_transactions import PostgresShortTransactions
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.core.clock import Scheduler
from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import Config
from synrepl.daemon.database_wait import DatabaseWait, EmbeddedAway
from synrepl.storage import migrations
from synrepl.storage.database import DatabaseSession, Statements
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.launch.data_dir import named_errors
from synrepl.storage.launch.postgres import PostgresPortTaken
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.postgres.store import TAKEOVER_S, PostgresStore
from synrepl.storage.rooms.timelines.plain_rows import PLAIN_SETTINGS
from synrepl.storage.routed_store import RoutedStore
from synrepl.storage.server_name import check_server, record_server
from synrepl.storage.store import FactStore, WriterTaken
from synrepl.storage.writers import NameStarting, claim_startup
from synrepl.streams.definition import Stream

#: Seconds after which a database that is away is an error: soon enough for ``/ready``
#: and for callers, late enough for a restart of Postgres to go unnoticed.
GIVE_UP_S = 5.0

#: Seconds between two attempts to claim the name from a predecessor.
_CLAIM_INTERVAL_S = 0.1


class NoDatabase(ConfigError):
    """the configuration has no database to look at: set 'database' or 'database_path'"""


class LastPort:
    """The port on which the embedded database ran last.

    It is used again if it is free, so that running workers, which know the old DSN,
    find the database after a restart of the master.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        """The recorded port; 0 if there is none."""
        try:
            port = int(self._path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0
        return port if 0 < port < 2**16 else 0

    def write(self, dsn: str) -> None:
        """Record the port of a DSN."""
        self._path.write_text(f"{urlsplit(dsn).port or 0}\n", encoding="ascii")


@dataclass(frozen=True, slots=True)
class ProcessDatabase:
    """The database of a process, reachable and checked.

    :ivar dsn: its present DSN
    :ivar store: the store of the process's streams
    :ivar incarnations: incarnations of the server that any part of the process has met
    :ivar open_session: opens a connection for locks
    :ivar plain: reads what is plain for clients; None where the host is no address
    """

    dsn: str
    database: PostgresDatabase
    store: FactStore
    incarnations: Incarnations
    open_session: Callable[[], Awaitable[DatabaseSession]]
    plain: Statements | None


class DatabaseStart:
    """Starts and prepares the database of a process, and waits for it as long as necessary.

    :param wait: repeats the steps that need the database
    :param stops: gets callbacks that stop everything that was started
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        scheduler: Scheduler,
        config: Config,
        wait: DatabaseWait,
        stops: AsyncExitStack,
    ) -> None:
        self._wait = wait
        self._reactor = reactor
        self._scheduler = scheduler
        self._config = config
        self._stops = stops
        #: The database in use, by its DSN, which changes when an embedded one is restarted.
        self._reached: dict[str, PostgresDatabase] = {}
        #: Shuts an embedded database down, after the connections are closed.
        self._embedded = AsyncExitStack()
        stops.push_async_callback(self._embedded.aclose)
        stops.push_async_callback(self._disconnect)
        self._incarnations = Incarnations()
        #: Holds the session that keeps others from starting under the same name.
        self._claim = AsyncExitStack()
        stops.push_async_callback(self.release_startup)

    async def prepare_for_master(self, streams: Sequence[Stream]) -> ProcessDatabase:
        """Start the database if it is embedded, and prepare it for a master.

        After making sure that this process may be the master, it migrates the schema as far as
        is safe while older processes run, and creates missing tables. No other process can
        start under its name before :meth:`release_startup`.

        :param streams: the streams of the process
        :raises DatabaseRefused: :raises WrongServer: it belongs to another server
        :raises WriterTaken: :raises NameStarting: another process is the master; nothing is changed
        :raises DeclarationChanged: a declaration contradicts its table
        """
        embedded = await self._start_embedded() if self._config.uses_embedded else None
        present = self._configured if embedded is None else lambda: embedded
        schema, server = migrations.load(), self._config.server_name

        async def prepared() -> tuple[str, PostgresDatabase]:
            dsn, database = await self._reach(present())
            await self._claim_startup(dsn)
            await migrations.migrate(database, schema, migrations.MigrationPhase.PRE)
            await database.run("record server", lambda txn: record_server(txn, server))
            return dsn, database

        dsn, database = await self._wait.until_done(prepared)
        # The master announces its own facts itself, so its commits need no NOTIFY.
        tables = self._tables(dsn, database, notify=False)
        made = [stream for stream in streams if not stream.in_memory]
        for name in await self._wait.until_done(lambda: tables.prepare(made)):
            self._log.warn(
                "rows of stream {stream} can still be changed by plain SQL: a transaction "
                "that writes there kept its table busy; the next start of the master tries "
                "again to protect them",
                stream=name,
            )
        return self._process_database(dsn, database, tables)

    async def wait_for_master(self) -> ProcessDatabase:
        """Wait for the database, and for the master to prepare it.

        :raises DatabaseRefused: :raises WrongServer: it belongs to another server
        """
        schema, server = migrations.load(), self._config.server_name

        async def checked() -> tuple[str, PostgresDatabase]:
            dsn, database = await self._reach(self._configured())
            await database.run("check server", lambda txn: check_server(txn, server))
            await database.run(
                "check schema", lambda txn: migrations.check(txn, schema), read_only=True
            )
            return dsn, database

        dsn, database = await self._wait.until_done(checked)
        return self._process_database(dsn, database, self._tables(dsn, database, notify=True))

    async def release_startup(self) -> None:
        """Release the startup claim: from now on the writer's lease keeps others away."""
        await self._claim.aclose()

    async def _start_embedded(self) -> str:
        """Start the embedded database, and return its DSN."""
        directory, wanted = self._config.data_dir, self._config.embedded.port
        assert directory is not None
        last = LastPort(directory / "postgres.port")
        try:
            dsn = await self._start_at(directory, wanted or last.read())
        except PostgresPortTaken:
            if wanted:
                raise
            dsn = await self._start_at(directory, 0)
        with named_errors(directory):
            last.write(dsn)
        return dsn

    async def _start_at(self, directory: Path, port: int) -> str:
        wanted = self._config.embedded
        embedded = EmbeddedPostgres(
            self._reactor,
            directory,
            port=port,
            prefer_system=wanted.prefer_system,
            fsync=wanted.fsync,
        )
        self._embedded.push_async_callback(embedded.stop)
        return await embedded.start()

    async def _claim_startup(self, dsn: str) -> None:
        """Make sure that this process may be the master, before it changes anything.

        :raises WrongServer: :raises WriterTaken: :raises NameStarting:
        """
        await self.release_startup()
        name, server = self._config.instance_name, self._config.server_name
        session = await open_session(self._reactor, dsn, name)
        self._claim.push_async_callback(session.close)
        await session.run(lambda txn: check_server(txn, server))
        give_up = self._scheduler.seconds() + TAKEOVER_S
        while True:
            try:
                return await session.run(lambda txn: claim_startup(txn, name))
            except (WriterTaken, NameStarting):  # a predecessor may be about to end
                if self._scheduler.seconds() >= give_up:
                    raise
            await self._scheduler.sleep(_CLAIM_INTERVAL_S)

    async def _reach(self, dsn: str) -> tuple[str, PostgresDatabase]:
        if dsn not in self._reached:
            await self._disconnect()
            limits = DatabaseLimits(connections=self._config.database_pool.max, give_up_s=GIVE_UP_S)
            name = self._config.instance_name
            self._reached[dsn] = PostgresDatabase(self._reactor, dsn, name, limits)
        return dsn, self._reached[dsn]

    async def _disconnect(self) -> None:
        while self._reached:
            _, database = self._reached.popitem()
            await database.close()

    def _tables(self, dsn: str, database: PostgresDatabase, *, notify: bool) -> PostgresStore:
        """Make the store of the streams that have tables."""
        instance = self._config.instance_name
        statements = short = None
        if PostgresSingles.can_reach(dsn):
            statements = PostgresSingles(self._reactor, dsn, instance)
            self._stops.callback(statements.close)
            short = PostgresShortTransactions(self._reactor, dsn, instance, database.was_committed)
            self._stops.callback(short.close)
        else:
            self._log.warn(
                "the database's host is a name, which is looked up in threads: short statements take "
                "more CPU time there; give its address besides, as hostaddr in the DSN"
            )
        return PostgresStore(
            self._scheduler,
            database,
            partial(open_session, self._reactor, dsn, instance),
            holder=f"{instance!r} (process {os.getpid()} on {socket.gethostname()})",
            notify=notify,
            statements=statements,
            incarnations=self._incarnations,
            short=short,
        )

    def _process_database(
        self, dsn: str, database: PostgresDatabase, tables: PostgresStore
    ) -> ProcessDatabase:
        store = RoutedStore(tables, MemoryStore(self._scheduler))
        opens = partial(open_session, self._reactor, dsn, self._config.instance_name)
        return ProcessDatabase(
            dsn, database, store, self._incarnations, opens, self._plain_statements(dsn)
        )

    def _plain_statements(self, dsn: str) -> Statements | None:
        if not PostgresSingles.can_reach(dsn):
            return None
        plain = PostgresSingles(self._reactor, dsn, self._config.instance_name, PLAIN_SETTINGS)
        self._stops.callback(plain.close)
        return plain

    def _configured(self) -> str:
        """The present DSN; that of an embedded database, which the master runs, may change."""
        if self._config.dsn is not None:
            return self._config.dsn.reveal()
        return running_dsn(self._config.embedded_dsn_path)


def running_dsn(path: Path) -> str:
    """The DSN of an embedded database that another process runs.

    :raises EmbeddedAway: no process runs it
    :raises DataDirUnusable: the file cannot be read
    """
    with named_errors(path.parent):
        try:
            return path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise EmbeddedAway(path=path) from None
