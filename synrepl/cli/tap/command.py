"""``synrepl tap``: records, replays and judges replication traffic; see ``docs/tap.md``."""

from __future__ import annotations

import click

from synrepl.cli.tap import judge as tap_judge
from synrepl.cli.tap import record as tap_record
from synrepl.cli.tap import replay as tap_replay


@click.group("tap")
def command() -> None:
    """Record replication traffic, replay it, and check it against the protocol."""


command.add_command(tap_record.command)
command.add_command(tap_replay.command)
command.add_command(tap_judge.command)
