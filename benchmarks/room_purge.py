"""Purging half of a large room: for how long its lock is held.

The room has 10,000 members and 50,000 state events, so half of what goes is still in the states that stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most, shown

_MEMBERS, _EVENTS = 10_000, 50_000


def run(scale: Scale) -> Iterator[Row]:
    """Purge half of the room, and verify it before and after."""
    arguments = [scale.of(_MEMBERS), scale.of(_EVENTS)]
    with postgres() as dsn, Child("room_purge_process", dsn, *arguments) as child:
        found = child.receive()
    name = f"purge half of {arguments[1]:,} state events of {arguments[0]:,} members"
    detail = (
        f"{found['rows']:,} rows in {found['batches']:,} batches and {shown(found['seconds'])} s;"
        f" {found['leftovers']} left over"
    )
    yield Row(f"{name}: lock held in all", found["total_ms"], "ms", at_most(1_000), None, detail)
    yield Row(f"{name}: lock held at most", found["longest_ms"], "ms", at_most(50))
    for when in ("before", "after"):
        yield Row(
            f"verify the room {when} the purge",
            found[f"verify {when}"],
            "s",
            None,
            None,
            f"{found[f'findings {when}']} findings",
        )
