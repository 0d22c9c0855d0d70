"""``synrepl schema``: shows the schema of a database, and upgrades it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.text import Text

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.cli.configured_database import configured_database
from synrepl.cli.conventions import (
    json_option,
    optional_config_option,
    print_json,
    refuse_options,
)
from synrepl.cli.running import run
from synrepl.cli.schema import confirm as schema_confirm
from synrepl.cli.schema import rights as schema_rights
from synrepl.cli.schema import server as schema_server
from synrepl.cli.terminal import plain_table, show
from synrepl.core.errors import Refused
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import load
from synrepl.storage import migrations
from synrepl.storage.database import Database, Transaction
from synrepl.storage.migrations import MigrationPhase
from synrepl.storage.server_name import check_server, record_server, recorded_server
from synrepl.storage.tables import HEAD
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.columns import columns
from synrepl.streams.definition import Stream


class PreComesFirst(Refused):
    """{missing} is still to be applied, and comes before every post migration: 'synrepl schema --apply pre' first, then replace the running processes, then --apply post"""


@click.group("schema", invoke_without_command=True)
@optional_config_option
@click.option(
    "--apply",
    "phase",
    type=click.Choice(["pre", "post", "all"]),
    help="Apply pending migrations: 'pre' at any time, 'post' and 'all' as described above.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, config: tuple[Path, ...], phase: str | None, as_json: bool) -> None:
    """Show the migrations and stream tables of a database, or upgrade it.

    Without a command, -c is needed.

    Migrations have two phases. 'pre' is safe while processes of the previous
    version are running, and a master applies it when it starts; 'post' is safe
    once none of them is running. An upgrade is therefore: --apply pre, replace
    the processes one by one, --apply post. With all processes stopped, --apply
    all does both.

    The master creates tables of new streams, and adds missing columns, when it
    starts.

    An embedded database that is not running is started for the command.
    """
    if ctx.invoked_subcommand is not None:
        refuse_options(ctx)
        return
    if not config:
        raise click.UsageError("Missing option '-c' / '--config'.", ctx)
    loaded = load(config)
    streams = catalogue(loaded)

    async def main(reactor: Any) -> SchemaReport:
        async with configured_database(reactor, loaded) as database:
            done = await upgrade(database, phase, loaded.server_name) if phase else ()
            return await report(database, streams, done)

    found = run(main)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


command.add_command(schema_rights.grant_command)
command.add_command(schema_rights.revoke_command)
command.add_command(schema_server.command)
command.add_command(schema_confirm.command)


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """The state of a schema.

    :ivar where: the address of the database, for people
    :ivar server: the name of the server that the database belongs to; None if none yet
    :ivar migrations: the name of each migration, in order, and whether it is applied
    :ivar done: the migrations that this command applied
    :ivar tables: the state of each stream's table
    """

    where: str
    server: str | None
    migrations: tuple[tuple[str, bool], ...]
    done: tuple[str, ...]
    tables: tuple[TableState, ...]

    def to_json(self) -> dict[str, Any]:
        """``{"database", "server_name", "migrations", "applied_now", "tables"}``."""
        return {
            "database": self.where,
            "server_name": self.server,
            "migrations": [{"migration": name, "applied": yes} for name, yes in self.migrations],
            "applied_now": list(self.done),
            "tables": [table.to_json() for table in self.tables],
        }


async def upgrade(database: Database, phase: str, server_name: str) -> tuple[str, ...]:
    """Apply the pending migrations of a phase.

    :param phase: ``pre``, ``post`` or ``all``
    :raises WrongServer: the database belongs to another server; nothing was changed
    :raises PreComesFirst: ``post`` was requested while a ``pre`` migration is pending
    """
    schema = migrations.load()
    await database.run("check server", lambda txn: check_server(txn, server_name))
    if phase == "post":
        todo = await database.run(
            "pending", lambda txn: migrations.pending(txn, schema), read_only=True
        )
        if todo and todo[0].phase is MigrationPhase.PRE:
            raise PreComesFirst(missing=todo[0])
    upto = MigrationPhase.PRE if phase == "pre" else MigrationPhase.POST
    done = await migrations.migrate(database, schema, upto)
    await database.run("record server", lambda txn: record_server(txn, server_name))
    return tuple(map(str, done))


async def report(
    database: PostgresDatabase, streams: Catalogue, done: tuple[str, ...]
) -> SchemaReport:
    """Read the state of migrations and tables."""
    schema = migrations.load()

    def look(txn: Transaction) -> SchemaReport:
        pending = set(migrations.pending(txn, schema))
        known = tuple((str(each), each not in pending) for each in schema.migrations)
        return SchemaReport(
            database.where, recorded_server(txn), known, done, tuple(compare(txn, streams))
        )

    return await database.run("schema", look, read_only=True)


def _print(found: SchemaReport) -> None:
    steps = plain_table("migration", "state")
    for name, applied in found.migrations:
        word = "applied now" if name in found.done else "applied" if applied else "pending"
        steps.add_row(name, Text(word, style="" if applied else "yellow"))
    tables = plain_table("stream", "table", "columns")
    for table in found.tables:
        style = _STYLES.get(table.state, "")
        tables.add_row(table.stream, Text(table.state, style), Text(_columns(table)))
    server = "of no server yet" if found.server is None else f"of server {found.server}"
    show(Text(f"database {found.where}, {server}", style="bold"), Text(), steps, Text(), tables)


_STYLES = {"differs": "red", "not made yet": "yellow", "in memory": "dim"}


def _columns(table: TableState) -> str:
    if table.state == "differs":
        return ", ".join(map(str, table.columns))
    return ", ".join(f"{column.name} {column.declared}" for column in table.columns)


_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = 'synrepl' AND c.relkind IN ('r', 'p') AND c.relname = ANY(%s)
  AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""


class ColumnState(NamedTuple):
    """One column: its type in the declaration and in the table, with ``?`` if it is nullable.

    The type is None where the column does not exist.
    """

    name: str
    declared: str | None
    found: str | None

    @property
    def same(self) -> bool:
        """Whether declaration and table agree."""
        return self.declared == self.found

    def __str__(self) -> str:
        if self.same:
            return f"{self.name} {self.declared}"
        if self.found is None:
            return f"{self.name} {self.declared} (not in the table yet)"
        if self.declared is None:
            return f"{self.name} {self.found} (not declared)"
        return f"{self.name} {self.declared} (the table has {self.found})"


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one stream's table.

    :ivar state: ``as declared``, ``differs``, ``not made yet`` or ``in memory``
    """

    stream: str
    state: str
    columns: tuple[ColumnState, ...]

    def to_json(self) -> dict[str, object]:
        """``{"stream", "state", "columns": [{"name", "declared", "found"}]}``."""
        shown = [column._asdict() for column in self.columns]
        return {"stream": self.stream, "state": self.state, "columns": shown}


def compare(txn: Transaction, streams: Iterable[Stream]) -> list[TableState]:
    """Compare the tables of streams with their declarations; changes and locks nothing."""
    wanted = list(streams)
    txn.execute(_COLUMNS, ([stream.name for stream in wanted],))
    tables: dict[str, dict[str, str]] = {}
    for table, name, kind, nullable in txn.fetchall():
        found = tables.setdefault(table, {})
        if name not in HEAD:
            found[name] = _spelt(kind, nullable)
    return [_state(stream, tables.get(stream.name)) for stream in wanted]


def _state(stream: Stream, found: dict[str, str] | None) -> TableState:
    declared = {column.name: _spelt(column.type.sql, column.nullable) for column in columns(stream)}
    if stream.in_memory or found is None:
        state = "in memory" if stream.in_memory else "not made yet"
        listed = tuple(ColumnState(name, kind, None) for name, kind in declared.items())
        return TableState(stream.name, state, listed)
    names = dict.fromkeys((*declared, *found))
    both = tuple(ColumnState(name, declared.get(name), found.get(name)) for name in names)
    same = all(column.same for column in both)
    return TableState(stream.name, "as declared" if same else "differs", both)


def _spelt(kind: str, nullable: bool) -> str:
    return f"{kind}?" if nullable else kind
