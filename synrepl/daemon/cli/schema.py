"""``synrepl schema``: what a database holds, and upgrading it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from synrepl.adapters.embedded_postgres import EmbeddedPostgres
from synrepl.adapters.postgres import Limits, PostgresDatabase
from synrepl.core.errors import ConfigError, Refused
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.cli.conventions import config_option, json_option, print_json
from synrepl.daemon.cli.running import run
from synrepl.daemon.cli.schema_tables import TableState, compare
from synrepl.daemon.cli.terminal import plain_table, show
from synrepl.daemon.config import Config, load
from synrepl.daemon.database import running_dsn
from synrepl.storage import migrations
from synrepl.storage.database import Database, Transaction
from synrepl.storage.launch.postgres import DataDirTaken
from synrepl.storage.migrations import Phase
from synrepl.streams.catalogue import Catalogue

#: How long a database that is away is waited for, in seconds.
PATIENCE_S = 10.0


class NoDatabase(ConfigError):
    """the configuration has no database to look at: set 'database' or 'database_path'"""


class PreComesFirst(Refused):
    """{missing} is still to be applied, and comes before every post migration: 'synrepl schema --apply pre' first, then replace the running processes, then --apply post"""


@click.command("schema")
@config_option
@click.option(
    "--apply",
    "phase",
    type=click.Choice(["pre", "post", "all"]),
    help="Apply pending migrations: 'pre' any time, 'post' and 'all' as told above.",
)
@json_option
def command(config: tuple[Path, ...], phase: str | None, as_json: bool) -> None:
    """Show the migrations and stream tables of a database, or upgrade it.

    Migrations come in two phases. 'pre' is safe while processes of the version
    before still run (a master applies it when it starts); 'post' is for when
    none of them runs any more. So an upgrade is: --apply pre, replace the
    processes one by one, --apply post. With everything stopped, --apply all
    does both.

    A new stream's table is made, and one that lacks columns is widened, when
    the master starts.

    An embedded database that does not run is started for the time of the command.
    """
    loaded = load(config)
    streams = catalogue(loaded)

    async def main(reactor: Any) -> Report:
        async with database_of(reactor, loaded) as database:
            done = await upgrade(database, phase) if phase else ()
            return await report(database, streams, done)

    found = run(main)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, after what was done.

    :ivar migrations: all there are, in order, with whether they are applied
    :ivar done: those that were applied just now
    """

    where: str
    migrations: tuple[tuple[str, bool], ...]
    done: tuple[str, ...]
    tables: tuple[TableState, ...]

    def to_json(self) -> dict[str, Any]:
        """``{"database", "migrations", "applied_now", "tables"}``."""
        return {
            "database": self.where,
            "migrations": [{"migration": name, "applied": yes} for name, yes in self.migrations],
            "applied_now": list(self.done),
            "tables": [table.to_json() for table in self.tables],
        }


@asynccontextmanager
async def database_of(reactor: Any, config: Config) -> AsyncIterator[PostgresDatabase]:
    """The database of a configuration, with the embedded one running.

    :raises NoDatabase: :raises EmbeddedAway: and what
        :meth:`.EmbeddedPostgres.start` raises
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
        limits = Limits(connections=1, give_up_s=PATIENCE_S)
        database = PostgresDatabase(reactor, dsn, "synrepl-schema", limits)
        try:
            yield database
        finally:
            await database.close()
    finally:
        if embedded is not None:
            await embedded.stop()


async def upgrade(database: Database, phase: str) -> tuple[str, ...]:
    """Apply what is pending in a phase.

    :param phase: ``pre``, ``post`` or ``all``
    :raises PreComesFirst: ``post`` was asked for, and a ``pre`` is next
    """
    schema = migrations.load()
    if phase == "post":
        todo = await database.run(
            "pending", lambda txn: migrations.pending(txn, schema), read_only=True
        )
        if todo and todo[0].phase is Phase.PRE:
            raise PreComesFirst(missing=todo[0])
    upto = Phase.PRE if phase == "pre" else Phase.POST
    done = await migrations.migrate(database, schema, upto)
    return tuple(map(str, done))


async def report(database: PostgresDatabase, streams: Catalogue, done: tuple[str, ...]) -> Report:
    """Look at migrations and tables."""
    schema = migrations.load()

    def look(txn: Transaction) -> Report:
        pending = set(migrations.pending(txn, schema))
        known = tuple((str(each), each not in pending) for each in schema.migrations)
        return Report(database.where, known, done, tuple(compare(txn, streams)))

    return await database.run("schema", look, read_only=True)


def _print(found: Report) -> None:
    steps = plain_table("migration", "state")
    for name, applied in found.migrations:
        word = "applied now" if name in found.done else "applied" if applied else "pending"
        steps.add_row(name, Text(word, style="" if applied else "yellow"))
    tables = plain_table("stream", "table", "columns")
    for table in found.tables:
        style = _STYLES.get(table.state, "")
        tables.add_row(table.stream, Text(table.state, style), Text(_columns(table)))
    show(Text(f"database {found.where}", style="bold"), Text(), steps, Text(), tables)


_STYLES = {"differs": "red", "not made yet": "yellow", "in memory": "dim"}


def _columns(table: TableState) -> str:
    if table.state == "differs":
        return ", ".join(map(str, table.columns))
    return ", ".join(f"{column.name} {column.declared}" for column in table.columns)
