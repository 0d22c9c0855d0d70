"""The named followers and slow clients of a master, for ``synrepl status``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import rich.console
from rich.text import Text

from synrepl.cli.cells import cell, duration
from synrepl.cli.terminal import plain_table

_STYLES = {"missing": "red", "stuck": "red", "behind": "yellow"}


def named_follower_tables(
    followers: Iterable[Mapping[str, Any]],
) -> Iterable[rich.console.RenderableType]:
    """A table with a line per follower; empty without followers."""
    table = plain_table("named follower", "health", "lag rows>", "lag>", "last sign>", "lease")
    for follower in followers:
        health = cell(follower.get("health"))
        table.add_row(
            Text(cell(follower.get("name"))),
            Text(health, style=_STYLES.get(health, "")),
            Text(cell(follower.get("lag_rows"))),
            Text(duration(follower.get("lag_seconds"))),
            Text(_ago(follower.get("seen_s"))),
            Text(_lease(follower.get("lease_s"))),
        )
    return [Text(), table] if table.row_count else []


def slow_client_lines(slow_clients: Mapping[str, Any]) -> Iterable[Text]:
    """Clients that were disconnected for being slow, the latest last."""
    if slow_clients.get("count"):
        yield Text(
            f"{cell(slow_clients['count'])} slow clients were cut off, the last ones:", style="red"
        )
    for client in slow_clients.get("latest", []):
        yield Text(
            f"  {cell(client.get('name'))} at {cell(client.get('address'))},"
            f" {duration(client.get('ago_s'))} ago: {cell(client.get('queued_lines'))} lines"
            f" ({cell(client.get('queued_bytes'))} bytes) waited for it, the oldest for"
            f" {duration(client.get('waited_s'))}"
        )


def _ago(seconds: Any) -> str:
    ago = duration(seconds)
    return ago if ago == "-" else f"{ago} ago"


def _lease(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return "-"
    return f"{duration(seconds)} left" if seconds > 0 else f"ended {duration(-seconds)} ago"
