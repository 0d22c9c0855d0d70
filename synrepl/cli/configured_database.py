"""The database of a configuration, for sub-commands that work on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.adapters.postgres.embedded import EmbeddedPostgres
from synrepl.cli.running import run
from synrepl.core.errors import InputError
from synrepl.daemon.config.config import Config
from synrepl.daemon.database import NoDatabase, running_dsn
from synrepl.storage import migrations
from synrepl.storage.database import Transaction
from synrepl.storage.launch.postgres import DataDirTaken
from synrepl.storage.server_name import check_server
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream

T = TypeVar("T")

#: How long to retry an unreachable database, in seconds.
PATIENCE_S = 10.0


class NotInTheDatabase(InputError):
    """stream {stream!r} is kept in memory, so the database knows nothing of it"""


def stored_streams(known: Catalogue, names: Sequence[str]) -> list[Stream]:
    """The streams of these names; without names, all that are stored in the database.

    :raises UnknownStream: :raises NotInTheDatabase:
    """
    if not names:
        return [stream for stream in known if not stream.in_memory]
    streams = [known[name] for name in names]
    for stream in streams:
        if stream.in_memory:
            raise NotInTheDatabase(stream=stream.name)
    return streams


@asynccontextmanager
async def configured_dsn(reactor: Any, config: Config) -> AsyncIterator[str]:
    """The DSN of the database of a configuration; an embedded one is started if it is not running.

    :raises NoDatabase: :raises EmbeddedAway: and the errors of
        :meth:`.EmbeddedPostgres.start`
    """
    embedded = None
    if config.uses_embedded:
        assert config.data_dir is not None
        wanted = config.embedded
        embedded = EmbeddedPostgres(
            reactor,
            config.data_dir,
            port=wanted.port,
            prefer_system=wanted.prefer_system,
            fsync=wanted.fsync,
        )
        try:
            dsn = await embedded.start()
        except DataDirTaken:
            embedded, dsn = None, running_dsn(config.embedded_dsn_path)
    elif config.dsn is not None:
        dsn = config.dsn.reveal()
    else:
        raise NoDatabase()
    try:
        yield dsn
    finally:
        if embedded is not None:
            await embedded.stop()


@asynccontextmanager
async def configured_database(reactor: Any, config: Config) -> AsyncIterator[PostgresDatabase]:
    """Open the database of a configuration, with one connection.

    :raises NoDatabase: :raises EmbeddedAway: as :func:`configured_dsn`
    """
    async with configured_dsn(reactor, config) as dsn, opened(reactor, dsn) as database:
        yield database


@asynccontextmanager
async def opened(
    reactor: Any, dsn: str, instance: str = "synrepl-schema", connections: int = 1
) -> AsyncIterator[PostgresDatabase]:
    """A database by its DSN, closed at the end.

    :param instance: the name that the server shows
    :param connections: maximum number of concurrent transactions
    """
    limits = DatabaseLimits(connections=connections, give_up_s=PATIENCE_S)
    database = PostgresDatabase(reactor, dsn, instance, limits)
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def owned_database(reactor: Any, config: Config) -> AsyncIterator[PostgresDatabase]:
    """As :func:`configured_database`, for commands that write to it.

    :raises WrongServer: :raises SchemaBehind: as :func:`check_owned`
    """
    async with configured_database(reactor, config) as database:
        await database.run("check", lambda txn: check_owned(txn, config), read_only=True)
        yield database


def run_in_database(
    config: Config, what: str, work: Callable[[Transaction], T], *, owned: bool = True
) -> T:
    """Run work in one transaction in the database of a configuration, with a reactor.

    :param what: what the transaction does, for logs and errors
    :param owned: check first that the database belongs to the server and has the current schema
    :raises WrongServer: :raises SchemaBehind: as :func:`check_owned`
    """

    def checked(txn: Transaction) -> T:
        if owned:
            check_owned(txn, config)
        return work(txn)

    async def main(reactor: Any) -> T:
        async with configured_database(reactor, config) as database:
            return await database.run(what, checked)

    return run(main)


def check_owned(txn: Transaction, config: Config) -> None:
    """Check that a database belongs to the configuration's server and has the current schema.

    :raises WrongServer: :raises SchemaBehind:
    """
    check_server(txn, config.server_name)
    migrations.check(txn, migrations.load())
