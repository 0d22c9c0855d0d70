"""Metrics of rooms that were joined with partial state, in the database of a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from synrepl.daemon.metric_families import gauge


def partial_room_metrics(partial: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Metrics of a part of the status; none in a process that completes no rooms."""
    if partial is None:
        return
    yield gauge(
        "partial_rooms", "Rooms that do not have their full state yet.", float(partial["rooms"])
    )
    yield gauge(
        "partial_rooms_here",
        "Those of them that this process is working on.",
        float(len(partial["here"])),
    )
    yield gauge(
        "partial_rooms_standing_still",
        "Those of them that have not come forward for long.",
        float(partial["standing_still"]),
    )
    yield gauge(
        "partial_room_oldest_seconds",
        "Time since the first of them was joined.",
        partial["oldest_s"],
    )
    yield gauge(
        "partial_room_events",
        "Events in them that remain to be judged again.",
        float(partial["events"]),
    )
    yield gauge(
        "partial_room_servers",
        "Servers of these rooms by what came of asking them last.",
        partial["attempts"],
        "outcome",
    )
