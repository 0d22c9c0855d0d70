"""``synrepl status``: shows the status of a running process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import rich.console
from rich.live import Live
from rich.text import Text

from synrepl.cli.addresses import HttpAddress, master_http, own_http
from synrepl.cli.conventions import config_option, console, json_option, print_json
from synrepl.cli.status.tables import tables
from synrepl.cli.terminal import interruptible, show
from synrepl.client.client import Client
from synrepl.client.errors import ServerBusy
from synrepl.core.errors import ProtocolError, Unavailable
from synrepl.daemon.config.config import MasterConfig, WorkerConfig, load
from synrepl.daemon.exit_codes import EXIT_FAILED

#: The interval of --watch, and the timeout of a request, in seconds.
WATCH_S = 1.0
TIMEOUT_S = 10.0


@click.command("status")
@config_option
@json_option
@click.option("--watch", is_flag=True, help="Refresh every second until Ctrl-C.")
def command(config: tuple[Path, ...], as_json: bool, watch: bool) -> None:
    """Show streams, writers, followers and lag of a running process.

    The process is asked over HTTP, at the listener in its configuration. For a
    worker without an HTTP listener, the master is asked instead. The exit code is
    0 if the process is ready, and 1 if it is not ready or cannot be reached.
    """
    address = find_address(load(config))
    client = Client(address.url, address.secret, timeout_s=TIMEOUT_S, retries=False)
    if watch:
        with interruptible():
            _watch(client, as_json)
    status = fetch_status(client)
    if as_json:
        print_json(status)
    else:
        show(tables(status))
    if not status["ready"]:
        raise click.exceptions.Exit(EXIT_FAILED)


def find_address(config: MasterConfig | WorkerConfig) -> HttpAddress:
    """Find the HTTP listener to ask.

    :raises NoHttpListener: the configuration has one neither for the process nor for its master
    """
    if isinstance(config, WorkerConfig) and config.http is None:
        return master_http(config)
    return own_http(config)


def fetch_status(client: Client) -> dict[str, Any]:
    """Fetch readiness and status: ``ready``, ``reasons`` and ``warnings``, then the rest.

    While the process is starting, only these three are available.

    :raises SynreplError: what :meth:`.Client.status` raises
    """
    ready = client.ready()
    readiness = {
        "ready": bool(ready.get("ready")),
        "reasons": [str(reason) for reason in ready.get("reasons", [])],
        "warnings": [str(warning) for warning in ready.get("warnings", [])],
    }
    try:
        return {**readiness, **client.status()}
    except ServerBusy:
        return readiness  # the process is starting


def _watch(client: Client, as_json: bool) -> None:
    output = console()
    if as_json or not output.is_terminal:
        while True:
            print_json(_status_or_reason(client)) if as_json else show(
                _tables_or_reason(client), Text()
            )
            time.sleep(WATCH_S)
    with Live(_tables_or_reason(client), console=output, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(_tables_or_reason(client), refresh=True)


def _status_or_reason(client: Client) -> dict[str, Any]:
    """The status; only the reason if the process is unreachable."""
    try:
        return fetch_status(client)
    except (Unavailable, ProtocolError) as error:
        return {"ready": False, "reasons": [str(error)], "warnings": []}


def _tables_or_reason(client: Client) -> rich.console.RenderableType:
    try:
        return tables(fetch_status(client))
    except (Unavailable, ProtocolError) as error:
        return Text(str(error), style="red")
