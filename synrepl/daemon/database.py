"""The database of a process: embedded or elsewhere, and reached in the end."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from twisted.logger import Logger

from synrepl.adapters.embedded_postgres import EmbeddedPostgres
from synrepl.adapters.postgres import Limits, PostgresDatabase
from synrepl.adapters.postgres_session import open_session
from synrepl.adapters.postgres_single import PostgresSingles
from synrepl.core.clock import Scheduler
from synrepl.daemon.config import Config
from synrepl.daemon.database_wait import DatabaseWait, EmbeddedAway
from synrepl.storage import migrations
from synrepl.storage.database import Session
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.launch.data_dir import named_errors
from synrepl.storage.launch.postgres import PortTaken
from synrepl.storage.memory_store import MemoryStore
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
_LOOK_S = 0.1


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


class DatabaseOfProcess:
    """Finds, starts and prepares the database, and waits for it as long as it takes.

    :param wait: for the steps of the start that need the database
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        scheduler: Scheduler,
        config: Config,
        wait: DatabaseWait,
    ) -> None:
        self._wait = wait
        self._reactor = reactor
        self._scheduler = scheduler
        self._config = config
        self._embedded: EmbeddedPostgres | None = None
        self.dsn = ""
        self.database: PostgresDatabase | None = None
        self._statements: PostgresSingles | None = None
        self._startup: Session | None = None
        #: Those of the server that any part of the process has met.
        self.incarnations = Incarnations()

    async def start_embedded(self) -> None:
        """Start the embedded database when the configuration asks for one (a master does)."""
        if not self._config.uses_embedded:
            return
        assert self._config.data_dir is not None
        wanted = self._config.embedded.port
        last = LastPort(self._config.data_dir / "postgres.port")
        try:
            self.dsn = await self._start_embedded(wanted or last.read())
        except PortTaken:
            if wanted:
                raise
            self.dsn = await self._start_embedded(0)
        with named_errors(self._config.data_dir):
            last.write(self.dsn)

    async def _start_embedded(self, port: int) -> str:
        assert self._config.data_dir is not None
        wanted = self._config.embedded
        self._embedded = EmbeddedPostgres(
            self._reactor,
            self._config.data_dir,
            port=port,
            prefer_system=wanted.prefer_system,
            fsync=wanted.fsync,
        )
        return await self._embedded.start()

    async def connect(self, *, migrate: bool) -> PostgresDatabase:
        """Wait until the database answers, make sure that it is ours, and that its schema fits.

        :param migrate: apply what is safe to apply while older processes run, as a master,
            once it is sure that this process may be the master;
            otherwise wait for whoever does
        :raises DatabaseRefused: :raises WrongServer: it belongs to another server
        :raises WriterTaken: :raises NameStarting: another process is the master; nothing is changed
        :raises SynreplError: and other errors that waiting does not cure
        """
        schema = migrations.load()
        server = self._config.server_name

        async def connected() -> PostgresDatabase:
            database = await self._reachable()
            if migrate:
                await self._claim_startup()
                await migrations.migrate(database, schema, migrations.Phase.PRE)
                await database.run("record server", lambda txn: record_server(txn, server))
            else:
                await database.run("check server", lambda txn: check_server(txn, server))
                await database.run(
                    "check schema", lambda txn: migrations.check(txn, schema), read_only=True
                )
            return database

        return await self._wait.until_done(connected)

    async def store(self, streams: Sequence[Stream], *, as_master: bool) -> FactStore:
        """The store of the streams.

        :param as_master: make the tables that are missing; and wake nobody with each
            commit, for the master announces its own facts itself
        :raises DeclarationChanged: a declaration contradicts its table
        """
        assert self.database is not None
        instance = self._config.instance_name
        tables = PostgresStore(
            self._scheduler,
            self.database,
            partial(open_session, self._reactor, self.dsn, instance),
            holder=f"{instance!r} (process {os.getpid()} on {socket.gethostname()})",
            notify=not as_master,
            statements=self._singles(),
            incarnations=self.incarnations,
        )
        if as_master:
            made = [stream for stream in streams if not stream.in_memory]
            for name in await self._wait.until_done(lambda: tables.prepare(made)):
                self._log.warn(
                    "rows of stream {stream} can still be changed by plain SQL: a transaction "
                    "that writes there kept its table busy; the next start of the master tries "
                    "again to protect them",
                    stream=name,
                )
        return RoutedStore(tables, MemoryStore(self._scheduler))

    async def _claim_startup(self) -> None:
        """Make sure that this process may be the master, before it changes anything.

        :raises WrongServer: :raises WriterTaken: :raises NameStarting:
        """
        await self.finish_startup()
        name, server = self._config.instance_name, self._config.server_name
        session = self._startup = await open_session(self._reactor, self.dsn, name)
        await session.run(lambda txn: check_server(txn, server))
        give_up = self._scheduler.seconds() + TAKEOVER_S
        while True:
            try:
                return await session.run(lambda txn: claim_startup(txn, name))
            except (WriterTaken, NameStarting):  # perhaps a predecessor that is just ending
                if self._scheduler.seconds() >= give_up:
                    raise
            await self._scheduler.sleep(_LOOK_S)

    async def finish_startup(self) -> None:
        """Let others start under this name: from now on they find that it is taken."""
        session, self._startup = self._startup, None
        if session is not None:
            await session.close()

    async def stop(self) -> None:
        """Close the connections, and shut an embedded database down."""
        await self.finish_startup()
        if self._statements is not None:
            self._statements.close()
        if self.database is not None:
            await self.database.close()
        if self._embedded is not None:
            await self._embedded.stop()

    def _singles(self) -> PostgresSingles | None:
        if self._statements is None and PostgresSingles.can_reach(self.dsn):
            self._statements = PostgresSingles(self._reactor, self.dsn, self._config.instance_name)
        return self._statements

    async def _reachable(self) -> PostgresDatabase:
        """The database under its present DSN: that of an embedded one may have changed."""
        dsn = self._present_dsn()
        if self.database is not None and dsn != self.dsn:
            await self.database.close()
            self.database = None
        if self.database is None:
            self.dsn = dsn
            limits = Limits(connections=self._config.database_pool.max, give_up_s=GIVE_UP_S)
            name = self._config.instance_name
            self.database = PostgresDatabase(self._reactor, self.dsn, name, limits)
        return self.database

    def _present_dsn(self) -> str:
        if self._config.dsn is not None:
            return self._config.dsn.reveal()
        if self._embedded is not None:
            return self.dsn
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
