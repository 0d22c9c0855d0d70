"""``synrepl rooms import``: brings in rooms from a real Synapse's database, or from a file."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.cli.configured_database import opened
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.dsn import dsn_from_options, dsn_options
from synrepl.cli.rooms.import_reports import (
    file_report_json,
    file_report_parts,
    import_report_json,
    import_report_parts,
)
from synrepl.cli.rooms.maintenance import ShownProgress
from synrepl.cli.rooms.writing import RoomProcess, room_process
from synrepl.cli.running import run
from synrepl.cli.terminal import counted, printable, show
from synrepl.core.errors import ConfigError, InputError
from synrepl.core.names import writer_name
from synrepl.daemon.config.config import Config, load
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.rooms import Keys, ServerKey
from synrepl.services.rooms.importing.findings import ImportCounts, ImportFinding, ImportReport
from synrepl.services.rooms.importing.following import RoomFollower
from synrepl.services.rooms.importing.importer import ImportProgress, RoomImporter
from synrepl.services.rooms.importing.journal import ImportJournal
from synrepl.services.rooms.importing.persisting import PersistingSink
from synrepl.services.rooms.json_lines import JsonLinesImport, LinesReport
from synrepl.services.rooms.maintenance.room_job import MaintenanceProgress
from synrepl.services.rooms.published_keys import published_keys
from synrepl.storage.foreign.store import ForeignStore

T = TypeVar("T")

#: The name of the writer, unless another one is given.
WRITER = "rooms-import"


class WhatToImport(ConfigError):
    """what is to be imported? Say one of --database-path FILE or --database DSN for a Synapse's database (or set SYNREPL_DATABASE), or --file FILE for events as lines of JSON"""


class CannotRead(InputError):
    """{path} cannot be read: {reason}"""


@click.command("import")
@config_option
@click.argument("room_ids", metavar="[ROOM]...", nargs=-1)
@dsn_options
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    help="Import a file with an event per line, in federation format.",
)
@click.option(
    "--server-keys",
    "key_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Answer of GET /_matrix/key/v2/server of a server, such as the source; repeatable.",
)
@click.option("--follow", is_flag=True, help="Go on with what is new at the source, until Ctrl-C.")
@click.option(
    "--retry",
    is_flag=True,
    help="Verify rooms again in which something differs, is kept apart or could not be checked, and import what"
    " can be imported now.",
)
@click.option("--source", metavar="NAME", help="Name of the source, if its address changes.")
@click.option(
    "--room-version",
    "versions",
    nargs=2,
    multiple=True,
    metavar="ROOM VERSION",
    help="With --file: the version of a room whose m.room.create is not in it; repeatable.",
)
@click.option(
    "--writer",
    default=WRITER,
    show_default=True,
    metavar="NAME",
    help="Name under which the facts are written; no other process may have it.",
)
@click.option(
    "--most",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Number of findings that are listed; all are counted, and recorded.",
)
@json_option
def command(
    config: tuple[Path, ...],
    room_ids: tuple[str, ...],
    dsn: str | None,
    database_path: Path | None,
    insecure: bool,
    file: Path | None,
    key_files: tuple[Path, ...],
    follow: bool,
    retry: bool,
    source: str | None,
    versions: tuple[tuple[str, str], ...],
    writer: str,
    most: int,
    as_json: bool,
) -> None:
    """Import rooms of a Synapse from its database, while it runs; or events from a file.

    Without ROOM: all rooms. The source is only read. Every event is hashed again, signatures are
    checked where keys are known, and verdicts and states are computed again and compared. What
    differs is named; what is corrupt is kept apart. An import that was interrupted goes on where
    it was, and one that is complete takes in what is new.

    Rooms in which something differs are verified again with --retry: after the keys of more
    servers became known, or the source was mended.

    Exits with 1 if anything differs, or was left out or refused.
    """
    name = writer_name(writer)
    if file is not None:
        if dsn is not None or database_path is not None:
            raise WhatToImport()
        if room_ids or follow or retry or key_files:
            raise click.UsageError(
                "ROOM, --follow, --retry and --server-keys do not go with --file"
            )
        loaded = load(config)
        lines = _run(loaded, name, lambda process, bar: _file(process, bar, file, dict(versions)))
        _end(as_json, file_report_json(lines), file_report_parts(lines, most), not lines.refused)
        return
    found = dsn_from_options(dsn, database_path, insecure)
    if found is None:
        raise WhatToImport()
    if follow and room_ids:
        raise click.UsageError("--follow is for all rooms; leave ROOM out")
    loaded = load(config)
    wanted = _Wanted(found, room_ids, follow, retry, source, _keys(key_files), most, as_json)
    report = _run(loaded, name, wanted.run)
    _end(as_json, import_report_json(report), import_report_parts(report, most), report.is_equal)


def _run(
    config: Config, writer: str, work: Callable[[RoomProcess, ShownProgress], Awaitable[T]]
) -> T:
    """Run a coroutine with a process that persists rooms, and a progress bar."""

    async def main(reactor: Any) -> T:
        async with room_process(reactor, config, writer) as process:
            with ShownProgress() as bar:
                return await work(process, bar)

    return run(main)


def _end(as_json: bool, data: Any, parts: Sequence[Any], is_good: bool) -> None:
    if as_json:
        print_json(data)
    else:
        show(*parts)
    if not is_good:
        sys.exit(EXIT_FAILED)


async def _file(
    process: RoomProcess, bar: ShownProgress, path: Path, versions: dict[str, str]
) -> LinesReport:
    """Import a file of events."""
    job = JsonLinesImport(process.persister, process.database, versions)

    def on_progress(line: int) -> None:
        bar.show(MaintenanceProgress("", "lines", line, None))

    try:
        with path.open("rb") as file:
            return await job.run(file, on_progress)
    except OSError as error:
        raise CannotRead(path=path, reason=error.strerror or error) from error


def _keys(paths: Sequence[Path]) -> Keys:
    keys: dict[str, dict[str, ServerKey]] = {}
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CannotRead(path=path, reason=error.strerror or error) from error
        for server, of_server in published_keys(data, path).items():
            keys.setdefault(server, {}).update(of_server)
    return keys


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is imported of a Synapse.

    :ivar rooms: none for all
    :ivar source: name of the source; None for its address
    """

    dsn: str
    rooms: tuple[str, ...]
    follow: bool
    retry: bool
    source: str | None
    keys: Keys
    most: int
    as_json: bool

    async def run(self, process: RoomProcess, bar: ShownProgress) -> ImportReport:
        """Copy, then take in what has happened meanwhile."""
        async with opened(process.reactor, self.dsn, WRITER) as foreign:
            importer = self._importer(process, foreign)
            follower = RoomFollower(process.scheduler, ForeignStore(foreign), importer)
            bar.show(MaintenanceProgress("", "waiting for open transactions", 0, None))
            # Also before single rooms: what happens in them later is found from here on.
            await follower.begin()
            report = await importer.run(self.rooms or None, lambda at: bar.show(_progress(at)))
            if self.retry:
                await importer.retry(self.rooms or None, lambda at: bar.show(_progress(at)))
            if self.rooms:
                return await importer.journal.report(self.most)
            await follower.poll()
            if self.follow:
                bar.end()
                _Announcer(self).imported(report.counts, report.findings)
                await follower.follow(_Announcer(self))
            return await importer.journal.report(self.most)

    def _importer(self, process: RoomProcess, foreign: PostgresDatabase) -> RoomImporter:
        database = process.database
        return RoomImporter(
            ForeignStore(foreign),
            ImportJournal(database, self.source or foreign.where),
            PersistingSink(process.persister, database),
            self.keys,
        )


class _Announcer:
    """Prints what following does."""

    def __init__(self, wanted: _Wanted) -> None:
        self._wanted = wanted

    def imported(self, counts: ImportCounts, findings: Sequence[ImportFinding]) -> None:
        """Print what was imported."""
        report = ImportReport(counts=counts, findings=list(findings))
        if self._wanted.as_json:
            print_json(import_report_json(report))
            return
        click.echo(f"imported {counted(counts.events, 'event')}")
        for each in findings[: self._wanted.most]:
            click.echo(printable(str(each)))


def _progress(at: ImportProgress) -> MaintenanceProgress:
    where = f"room {at.room:,} of {at.rooms:,}, events"
    return MaintenanceProgress(at.room_id, where, at.done, at.events)
