"""The database of a process: embedded or elsewhere, and reached in the end."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
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
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.core.clock import Scheduler
from synrepl.daemon.config.config import Config
from synrepl.daemon.database_wait import DatabaseWait, EmbeddedAway
from synrepl.storage import migrations
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.launch.data_dir import named_errors
from synrepl.storage.launch.postgres import PostgresPortTaken
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.postgres_store import TAKEOVER_S, PostgresStore
from synrepl.storage.routed_store import RoutedStore
from synrepl.storage.server_name import check_server, record_server
from synrepl.storage.startup import NameStarting, claim_startup
from synrepl.storage.store import FactStore, WriterTaken
from synrepl.streams.definition import Stream

#: After how many seconds a database that is away is an error: soon enough for ``/ready``
#: and for callers, late enough for a restart of Postgres to pass unnoticed.
GIVE_UP_S = 5.0

#: Between two looks whether a predecessor still has the name, in seconds.
_CLAIM_INTERVAL_S = 0.1


class LastPort:
    """On which port the embedded database ran last.

    It is taken again when it is free, so that workers, which know the DSN from
    before, find the database again after the master was restarted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        """The port; 0 when there is none on record."""
        try:
            port = int(self._path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0
        return port if 0 < port < 2**16 else 0

    def write(self, dsn: str) -> None:
        """Put the port of a DSN on record."""
        self._path.write_text(f"{urlsplit(dsn).port or 0}\n", encoding="ascii")


@dataclass(frozen=True, slots=True)
class ProcessDatabase:
    """The database of a process that could be reached, and found to fit.

    :ivar dsn: its present DSN
    :ivar store: of the process's streams
    :ivar incarnations: those of the server that any part of the process has met
    """

    dsn: str
    database: PostgresDatabase
    store: FactStore
    incarnations: Incarnations


class DatabaseStart:
    """Finds, starts and prepares the database of a process, and waits for it as long as it takes.

    :param wait: for the steps that need the database
    :param stops: is told how to stop what was started
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
        #: The database in use, by its DSN, which changes when an embedded one starts anew.
        self._reached: dict[str, PostgresDatabase] = {}
        #: Shuts an embedded database down, after the connections are closed.
        self._embedded = AsyncExitStack()
        stops.push_async_callback(self._embedded.aclose)
        stops.push_async_callback(self._disconnect)
        self._incarnations = Incarnations()
        #: The session that keeps others from starting under the same name.
        self._claim = AsyncExitStack()
        stops.push_async_callback(self.release_startup)

    async def prepare_for_master(self, streams: Sequence[Stream]) -> ProcessDatabase:
        """Start the database if it is an embedded one, and prepare it for a master.

        The schema is changed as far as is safe while older processes run, once it is sure that
        this process may be the master; missing tables are made. Nobody else starts under its
        name before :meth:`release_startup`.

        :param streams: that the process knows
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
        # Nobody has to be woken by a commit: the master announces its own facts itself.
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
        """Let others start under this name: from now on they find that it is taken."""
        await self._claim.aclose()

    async def _start_embedded(self) -> str:
        """The DSN of the embedded database, which runs from now on."""
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
            except (WriterTaken, NameStarting):  # perhaps a predecessor that is just ending
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
        """The store of the streams that have tables."""
        instance = self._config.instance_name
        statements = None
        if PostgresSingles.can_reach(dsn):
            statements = PostgresSingles(self._reactor, dsn, instance)
            self._stops.callback(statements.close)
        return PostgresStore(
            self._scheduler,
            database,
            partial(open_session, self._reactor, dsn, instance),
            holder=f"{instance!r} (process {os.getpid()} on {socket.gethostname()})",
            notify=notify,
            statements=statements,
            incarnations=self._incarnations,
        )

    def _process_database(
        self, dsn: str, database: PostgresDatabase, tables: PostgresStore
    ) -> ProcessDatabase:
        store = RoutedStore(tables, MemoryStore(self._scheduler))
        return ProcessDatabase(dsn, database, store, self._incarnations)

    def _configured(self) -> str:
        """The DSN now: that of an embedded database, which the master runs, changes."""
        if self._config.dsn is not None:
            return self._config.dsn.reveal()
        return running_dsn(self._config.embedded_dsn_path)


def running_dsn(path: Path) -> str:
    """The DSN of an embedded database that another process runs.

    :raises EmbeddedAway: nobody runs it
    :raises DataDirUnusable: the file cannot be read
    """
    with named_errors(path.parent):
        try:
            return path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise EmbeddedAway(path=path) from None
