"""What ``synrepl status`` shows of rooms that were joined with partial state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from synrepl.cli.terminal import cell, duration


def partial_room_lines(rooms: Any) -> Iterable[Text]:
    """Lines about partial rooms; none where all rooms are complete.

    :param rooms: the part of the status about rooms
    """
    partial = rooms.get("partial") if isinstance(rooms, Mapping) else None
    if not isinstance(partial, Mapping) or not partial.get("rooms"):
        return
    yield Text(
        f"{cell(partial['rooms'])} rooms are partial, the first since"
        f" {duration(partial.get('oldest_s'))}, and {cell(partial.get('events'))} events in them are"
        f" to be judged again; {cell(partial.get('standing_still'))} do not come forward",
        style="red" if partial.get("standing_still") else "",
    )
    for each in partial.get("shown", [])[:5]:
        yield Text(
            f"  {cell(each.get('room_id'))}: {cell(each.get('sentence'))},"
            f" ready in {duration(each.get('eta_s'))}",
            style="red" if each.get("stands_still") else "dim",
        )
        for asked in each.get("servers_asked", []):
            if asked.get("code") != "ok":
                yield Text(
                    f"    {cell(asked.get('destination'))}, {cell(asked.get('attempts'))} times,"
                    f" {duration(asked.get('seconds_ago'))} ago: {cell(asked.get('reason'))}",
                    style="dim",
                )
