"""``synrepl schema confirm``: confirms a server that was promoted or restored."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.configured_database import run_in_database
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.daemon.config.config import load
from synrepl.storage import incarnations
from synrepl.storage.database import Transaction


@click.command("confirm")
@config_option
@json_option
def command(config: tuple[Path, ...], as_json: bool) -> None:
    """Confirm the server after a failover or a restore.

    A master does this by itself. Until it is done, nothing is written, because tokens
    announced on the old server would be given out again. Afterwards, all streams
    continue far above any token that can have been announced, and followers are informed
    which facts may be lost.

    First make sure that the old server is no longer used. On a confirmed server, this
    changes nothing.
    """
    loaded = load(config)

    def work(txn: Transaction) -> tuple[bool, int]:
        before = incarnations.server(txn).is_confirmed
        return before, incarnations.confirm(txn, "synrepl schema confirm", {})

    before, number = run_in_database(loaded, "confirm", work)
    if as_json:
        print_json({"incarnation": number, "confirmed_now": not before})
    elif before:
        click.echo(f"the server is confirmed already (incarnation {number}); nothing was changed")
    else:
        click.echo(
            f"confirmed, as incarnation {number}; 'synrepl doctor database' shows what may be lost"
        )
