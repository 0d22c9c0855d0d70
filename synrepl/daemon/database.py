"""The database of a process: embedded or elsewhere, and reached in the end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
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
from synrepl.core.errors import Unavailable
from synrepl.daemon.config import Config
from synrepl.storage import migrations
from synrepl.storage.launch.postgres import PortTaken
from synrepl.storage.memory_store import MemoryStore
from synrepl.storage.postgres_store import PostgresStore
from synrepl.storage.routed_store import RoutedStore
from synrepl.storage.store import FactStore
from synrepl.streams.definition import Stream

#: After how many seconds a database that is away is an error: soon enough for ``/ready``
#: and for callers, late enough for a restart of Postgres to pass unnoticed.
GIVE_UP_S = 5.0

_BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class EmbeddedAway(Unavailable):
    """the embedded database does not run: {path} is missing; start the master of this data_dir"""


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

    :param waiting: told what is being waited for, for ``/ready``
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        scheduler: Scheduler,
        config: Config,
        waiting: Callable[[str], object],
    ) -> None:
        self._waiting = waiting
        self._reactor = reactor
        self._scheduler = scheduler
        self._config = config
        self._embedded: EmbeddedPostgres | None = None
        self.dsn = ""
        self.database: PostgresDatabase | None = None
        self._statements: PostgresSingles | None = None

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
        """Wait until the database answers and its schema fits.

        :param migrate: apply what is safe to apply while older processes run;
            otherwise wait for whoever does
        :raises SynreplError: whatever waiting does not mend
        """
        attempt, schema = 0, migrations.load()
        while True:
            try:
                if self.database is None:
                    self.database = self._open()
                if migrate:
                    await migrations.migrate(self.database, schema, migrations.Phase.PRE)
                else:
                    await self.database.run(
                        "check schema", lambda txn: migrations.check(txn, schema), read_only=True
                    )
                return self.database
            except (Unavailable, migrations.SchemaBehind) as error:
                if isinstance(error, migrations.SchemaBehind) and migrate:
                    raise
                self._waiting(str(error))
                if attempt < 3 or attempt % 10 == 0:
                    self._log.warn("waiting for the database: {error}", error=error)
            await self._scheduler.sleep(_BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)])
            attempt += 1

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
        )
        if as_master:
            await tables.prepare([stream for stream in streams if not stream.in_memory])
        return RoutedStore(tables, MemoryStore(self._scheduler))

    async def stop(self) -> None:
        """Close the connections, and shut an embedded database down."""
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

    def _open(self) -> PostgresDatabase:
        if self._config.uses_embedded and self._embedded is None:
            path = self._config.embedded_dsn_path
            try:
                self.dsn = path.read_text(encoding="utf-8").strip()
            except OSError:
                raise EmbeddedAway(path=path) from None
        elif self._config.dsn is not None:
            self.dsn = self._config.dsn.reveal()
        limits = Limits(connections=self._config.database_pool.max, give_up_s=GIVE_UP_S)
        return PostgresDatabase(self._reactor, self.dsn, self._config.instance_name, limits)
