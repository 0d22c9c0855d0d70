"""``synrepl tap``: replication traffic on record; see ``docs/tap.md``."""

from __future__ import annotations

import click

from synrepl.cli.tap import judge as tap_judge
from synrepl.cli.tap import record as tap_record
from synrepl.cli.tap import replay as tap_replay


@click.group("tap")
def command() -> None:
    """Record replication traffic, play it again, and judge it."""


command.add_command(tap_record.command)
command.add_command(tap_replay.command)
command.add_command(tap_judge.command)
