"""``synrepl schema grant`` and ``revoke``: the rights of an application's database role."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.configured_database import run_in_database, stored_streams
from synrepl.cli.conventions import config_option
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import load
from synrepl.storage import rights as storage
from synrepl.storage.rights import Rights


@click.command("grant")
@config_option
@click.argument("role")
@click.argument("streams", nargs=-1)
@click.option("--append", is_flag=True, help="Allow appending facts, with synrepl.append().")
@click.option("--read", is_flag=True, help="Allow reading the tables of the streams.")
@click.option("--erase", is_flag=True, help="Allow calling synrepl.erase().")
@click.option(
    "--print", "only_print", is_flag=True, help="Print the SQL statements without running them."
)
def grant_command(
    config: tuple[Path, ...],
    role: str,
    streams: tuple[str, ...],
    append: bool,
    read: bool,
    erase: bool,
    only_print: bool,
) -> None:
    """Let a database role append to STREAMS or read them.

    Without STREAMS: every stream, including those declared later. The role needs no
    other right, and has none afterwards: rights to write to tables or sequences directly
    are revoked. Rights granted to it earlier stay; 'revoke' removes them all.
    """
    if not (append or read or erase):
        raise click.UsageError("say what to grant: --append, --read, --erase")
    loaded = load(config)
    stored_streams(catalogue(loaded), streams)
    rights = Rights(append=append, read=read, erase=erase, streams=streams)
    call = storage.statements_to_grant if only_print else storage.grant
    statements = run_in_database(loaded, "rights", lambda txn: call(txn, role, rights))
    if only_print:
        _print(statements)
        return
    to = ", ".join(streams) or "every stream"
    for may, words in ((append, f"append to {to}"), (read, f"read {to}"), (erase, "erase")):
        if may:
            click.echo(f"{role} may {words}")


@click.command("revoke")
@config_option
@click.argument("role")
@click.option(
    "--print", "only_print", is_flag=True, help="Print the SQL statements without running them."
)
def revoke_command(config: tuple[Path, ...], role: str, only_print: bool) -> None:
    """Revoke all rights of a role in the schema synrepl."""
    loaded = load(config)
    call = storage.statements_to_revoke if only_print else storage.revoke
    statements = run_in_database(loaded, "rights", lambda txn: call(txn, role))
    if only_print:
        _print(statements)
    else:
        click.echo(f"{role} has no rights in the schema synrepl any more")


def _print(statements: list[str]) -> None:
    for statement in statements:
        click.echo(f"{statement};")
