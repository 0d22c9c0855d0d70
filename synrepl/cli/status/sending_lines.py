"""What ``synrepl status`` shows of sending to other servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from synrepl.cli.terminal import cell, duration

#: Age of what waits from which on it is shown in red, in seconds.
_OLD_S = 60.0


def sending_lines(servers: Any) -> Iterable[Text]:
    """Lines about sending; none in a process that does not.

    :param servers: the part of the status about other servers
    """
    sending = servers.get("sending") if isinstance(servers, Mapping) else None
    if not isinstance(sending, Mapping):
        return
    oldest = sending.get("oldest_s")
    is_old = isinstance(oldest, int | float) and oldest > _OLD_S
    yield Text(
        f"sending to other servers: {cell(sending.get('partitions'))} partitions,"
        f" {cell(sending.get('sending'))} destinations now, {cell(sending.get('waiting'))} wait"
        f" (for {duration(oldest)}), {cell(sending.get('away'))} are away;"
        f" {cell(sending.get('pending_events'))} events and {cell(sending.get('pending_edus'))} EDUs"
        " are pending",
        style="red" if is_old else "",
    )
    if sending.get("missing_partitions"):
        yield Text(
            f"{cell(sending['missing_partitions'])} partitions are still with another process, or"
            " rest after one that did not give them back",
            style="yellow",
        )
    if sending.get("error") is not None:
        yield Text(f"nothing can be sent: {cell(sending['error'])}", style="red")
