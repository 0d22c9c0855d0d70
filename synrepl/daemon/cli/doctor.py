"""``synrepl doctor``: looks for what is wrong in a database and in a running process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from synrepl.core.errors import SynreplError
from synrepl.daemon.cli import EXIT_FAILED, doctor_caches, doctor_database
from synrepl.daemon.cli.addresses import own_http
from synrepl.daemon.cli.conventions import json_option, print_json, refuse_options
from synrepl.daemon.cli.doctor_caches import Audited, audit_caches
from synrepl.daemon.cli.doctor_database import Examined, database_options, examine_database, given
from synrepl.daemon.cli.terminal import printable, show
from synrepl.daemon.config import Config, load


@click.group("doctor", invoke_without_command=True)
@database_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    config: tuple[Path, ...],
    dsn: str | None,
    database_path: Path | None,
    insecure: bool,
    older: float,
    fix: bool,
    as_json: bool,
) -> None:
    """Look for what is wrong in a database, and in the process of a configuration.

    Without a command: examines the database, as 'database' does; and with -c the
    caches of the process as well, as 'caches' does, if it runs. The database may be
    synrepl's own or a real Synapse's, which is only ever read.

    Exits with 0 when there are at most notes, with 1 when something is wrong.
    """
    if ctx.invoked_subcommand is not None:
        refuse_options(ctx)
        return
    where = given(config, dsn, database_path, insecure)
    loaded = load(config) if config else None
    examined = None
    if loaded is None or loaded.dsn is not None or loaded.uses_embedded:
        examined = examine_database(config, where, older, fix)
    audited = None if loaded is None else _audited(loaded)
    if examined is None and isinstance(audited, SynreplError):
        raise audited  # nothing at all could be looked at
    if as_json:
        print_json(_json(examined, audited))
    else:
        _print(examined, audited)
    well = examined is None or examined.report.healthy
    if not well or (isinstance(audited, Audited) and not audited.healthy):
        raise click.exceptions.Exit(EXIT_FAILED)


command.add_command(doctor_database.command)
command.add_command(doctor_caches.command)


def _audited(config: Config) -> Audited | SynreplError:
    """What a process told of its caches, or why it did not: perhaps it is not meant to run."""
    try:
        return audit_caches(own_http(config))
    except SynreplError as error:
        return error


def _json(examined: Examined | None, audited: Audited | SynreplError | None) -> dict[str, Any]:
    told = {} if examined is None else examined.to_json()
    if isinstance(audited, Audited):
        told["caches"] = audited.to_json()
    elif audited is not None:
        told["caches_unknown"] = str(audited)
    return told


def _print(examined: Examined | None, audited: Audited | SynreplError | None) -> None:
    parts = [] if examined is None else examined.parts()
    if isinstance(audited, Audited):
        parts += [Text(), audited.tables()]
    elif audited is not None:
        parts += [Text(), Text(f"caches were not looked at: {printable(str(audited))}", "dim")]
    show(*parts)
