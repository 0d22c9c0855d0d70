"""Sticky events, which stay visible for a limited time."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row


class StickyEventsRow(Row, frozen=True):
    """There is a new sticky event."""

    room_id: str
    event_id: str


STICKY_EVENTS = Stream(
    "sticky_events", {UNTAGGED: StickyEventsRow}, generations=Generation.since(Generation.CURRENT)
)
