"""``synrepl doctor database``: finds problems in our own database, or in a real Synapse's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import rich.console
from rich.table import Table
from rich.text import Text

from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.configured_database import PATIENCE_S, configured_database
from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.dsn import dsn_from_options, dsn_options
from synrepl.cli.running import run
from synrepl.cli.terminal import plain_table, printable, show
from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import load
from synrepl.daemon.exit_codes import EXIT_FAILED, EXIT_INCOMPLETE
from synrepl.storage.server_name import check_server
from synrepl.tools.doctor.examine import examine
from synrepl.tools.doctor.own_findings import FAILOVER
from synrepl.tools.doctor.report import ExaminationReport, Severity, StreamLine
from synrepl.tools.doctor.thresholds import TRANSACTION_S, Thresholds

#: Seconds between two snapshots, after which transient states are over.
SECOND_LOOK_S = 2.0

F = TypeVar("F", bound=Callable[..., Any])


class WhichDatabase(ConfigError):
    """which database is to be examined? Say one of -c FILE, --database-path FILE, --database DSN, or set SYNREPL_DATABASE"""


def database_options(command: F) -> F:
    """Options ``config``, ``dsn``, ``database_path``, ``insecure``, ``older`` and ``fix``."""
    for option in (
        click.option(
            "--fix", is_flag=True, help="Fix what can be fixed; only in synrepl's own database."
        ),
        click.option(
            "--older",
            type=click.FloatRange(min=0),
            default=TRANSACTION_S,
            show_default=True,
            metavar="SECONDS",
            help="Report transactions and reservations that are older than this.",
        ),
        dsn_options,
        click.option(
            "-c",
            "--config",
            "config",
            type=click.Path(path_type=Path),
            multiple=True,
            help="Configuration of a master or worker that uses the database; repeatable.",
        ),
    ):
        command = option(command)
    return command


@click.command("database")
@database_options
@json_option
def command(
    config: tuple[Path, ...],
    dsn: str | None,
    database_path: Path | None,
    insecure: bool,
    older: float,
    fix: bool,
    as_json: bool,
) -> None:
    """Find problems in a database: synrepl's own, or a real Synapse's.

    Reports, each with its remedy: streams that are held, and by whom; sequences, tables
    and positions that do not match; dead writers; followers and leases; pending
    migrations. A Synapse's database is only read.

    Exits with 0 if there are at most notes, with 1 if there is a problem or the
    database cannot be examined, and with 3 if there is no problem but not everything
    could be examined.
    """
    examined = examine_database(config, find_dsn(config, dsn, database_path, insecure), older, fix)
    if as_json:
        print_json(examined.to_json())
    else:
        show(*examined.parts())
    exit_as(examined.report.has_problems, examined.report.is_complete)


def exit_as(wrong: bool, complete: bool) -> None:
    """Exit with the status of an examination.

    :param complete: everything could be examined
    """
    if wrong:
        raise click.exceptions.Exit(EXIT_FAILED)
    if not complete:
        raise click.exceptions.Exit(EXIT_INCOMPLETE)


def find_dsn(
    config: tuple[Path, ...], dsn: str | None, path: Path | None, insecure: bool = False
) -> str | None:
    """The DSN from an option or the environment; None if a configuration has it.

    :param insecure: plain text to a database on another machine is accepted
    :raises WhichDatabase: none or several were given
    :raises SynreplError: as :func:`.dsn_from_options`
    """
    if sum((bool(config), dsn is not None, path is not None)) > 1:
        raise WhichDatabase()
    if config:
        return None
    found = dsn_from_options(dsn, path, insecure)
    if found is None:
        raise WhichDatabase()
    return found


@dataclass(frozen=True, slots=True)
class Examined:
    """The report on a database, and its location."""

    where: str
    report: ExaminationReport

    def to_json(self) -> dict[str, Any]:
        """The report for programs, with the location as ``database``."""
        return {"database": self.where, **self.report.to_json()}

    def parts(self) -> list[rich.console.RenderableType]:
        """The report for the console."""
        return parts(self.where, self.report)


def examine_database(
    config: tuple[Path, ...], dsn: str | None, older: float, fix: bool
) -> Examined:
    """Examine a database; once per process.

    :param dsn: the DSN of the database; None for that of the configuration
    :param older: maximum age of transactions and reservations, in seconds
    :raises SynreplError: as :func:`~synrepl.tools.doctor.examine.examine`
    """
    return run(lambda reactor: examine_in(reactor, config, dsn, older, fix))


async def examine_in(
    reactor: Any, config: tuple[Path, ...], dsn: str | None, older: float, fix: bool
) -> Examined:
    """The same as :func:`examine_database`, under a running reactor."""
    scheduler = TwistedScheduler(reactor)
    async with _database(reactor, config, dsn) as database:
        if fix and config:
            server = load(config).server_name
            await database.run("check server", lambda txn: check_server(txn, server))
        report = await examine(
            database,
            Thresholds(transaction_s=older),
            fix,
            lambda: scheduler.sleep(SECOND_LOOK_S),
        )
        return Examined(database.where, report)


@asynccontextmanager
async def _database(
    reactor: Any, config: tuple[Path, ...], dsn: str | None
) -> AsyncIterator[PostgresDatabase]:
    if dsn is None:
        async with configured_database(reactor, load(config)) as configured:
            yield configured
        return
    limits = DatabaseLimits(connections=1, give_up_s=PATIENCE_S)
    database = PostgresDatabase(reactor, dsn, "synrepl-doctor", limits)
    try:
        yield database
    finally:
        await database.close()


_WORDS = {severity: severity.value for severity in Severity}
_WORDS[Severity.UNSEEN] = "not looked at"
_STYLES = {
    Severity.ERROR: "red",
    Severity.WARNING: "yellow",
    Severity.UNSEEN: "yellow",
    Severity.NOTE: "dim",
}


def parts(where: str, report: ExaminationReport) -> list[rich.console.RenderableType]:
    """A report for the console: the streams and followers, then the findings."""
    parts: list[rich.console.RenderableType] = [
        Text(f"database {printable(where)}: {report.whose}", style="bold"),
        *(Text(f"done: {printable(done)}", style="green") for done in report.done),
    ]
    if report.streams:
        parts += [Text(), _streams(report)]
    if held := _held(report):
        parts += [Text(), *held]
    if report.followers:
        parts += [Text(), _followers(report)]
    for finding in report.findings:
        head = f"{_WORDS[finding.severity]}: {finding.id} ({finding.where}): {finding.what}"
        parts += [Text(), Text(printable(head), style=_STYLES[finding.severity])]
        parts.append(Text(f"  cure: {printable(finding.cure)}"))
    if report.is_healthy:
        else_ = "else " if any(each.id == FAILOVER for each in report.findings) else ""
        parts += [Text(), Text(f"nothing {else_}is wrong in the database", style="green")]
    elif not report.has_problems:
        parts += [Text(), Text("nothing is wrong in what could be looked at", style="yellow")]
    return parts


def _streams(report: ExaminationReport) -> Table:
    lines = report.streams
    numbers: dict[str, Sequence[int | None]] = {
        "given out": [line.last for line in lines.values()],
        "in table": [line.highest for line in lines.values()],
        "linear": [line.linear for line in lines.values()],
        "trimmed": [line.trimmed for line in lines.values()],
    }
    there = {name: found for name, found in numbers.items() if set(found) != {None}}
    table = plain_table("stream", *(f"{name}>" for name in there), "writers", "held by")
    for place, (name, line) in enumerate(lines.items()):
        cells = (_cell(found[place]) for found in there.values())
        texts = (name, *cells, _writers(line), _cell(_who(line)))
        table.add_row(*(Text(printable(text)) for text in texts))
    return table


def _who(line: StreamLine) -> str | None:
    """The holder in short; its description is below the table."""
    return None if line.held_by is None else line.held_by.partition(", ")[0]


def _held(report: ExaminationReport) -> list[Text]:
    """The holders that no finding describes."""
    described = " ".join(finding.what for finding in report.findings)
    by: dict[str, list[str]] = {}
    for name, line in report.streams.items():
        if line.held_by is not None and line.held_by not in described:
            by.setdefault(line.held_by, []).append(name)
    return [Text(printable(f"{', '.join(names)} held by {holder}")) for holder, names in by.items()]


def _writers(line: StreamLine) -> str:
    positions = ", ".join(f"{name} {position}" for name, position in line.writers.items())
    return _cell(positions) + (f"; kept for {line.kept_for}" if line.kept_for else "")


def _followers(report: ExaminationReport) -> Table:
    table = plain_table("follower", "behind>", "lease ends in>")
    for name, line in report.followers.items():
        lease = "-" if line.lease_s is None else f"{line.lease_s:.0f} s"
        table.add_row(Text(printable(name)), Text(str(line.behind)), Text(lease))
    return table


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
