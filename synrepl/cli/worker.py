"""``synrepl worker``: run a worker in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.conventions import config_option
from synrepl.daemon.checked_config import checked_worker
from synrepl.daemon.service import run
from synrepl.daemon.worker import WorkerProcess


@click.command("worker")
@config_option
def command(config: tuple[Path, ...]) -> None:
    """Run a worker until SIGTERM or SIGINT; it logs to stderr."""
    loaded = checked_worker(config)
    run(loaded, lambda reactor: WorkerProcess(reactor, loaded))
