"""Parses events as servers store them, which may be larger than what is sent."""

from __future__ import annotations

from msgspec.structs import replace

from synrepl.core.jsons import BadJson, decode_exactly
from synrepl.rooms import BadEvent, Event, RoomVersion, event_of, parse_event

#: Larger stored events may exceed the limit only by ``unsigned``, which servers add.
_NEAR_LIMIT = 60_000


def parse_stored_event(raw: bytes, version: RoomVersion) -> Event:
    """Parse an event; of one that is too large only because of ``unsigned``, the rest.

    :raises BadEvent: it is no event
    """
    try:
        return parse_event(raw, version)
    except BadEvent:
        if len(raw) < _NEAR_LIMIT:
            raise
        try:
            fields, _ = decode_exactly(raw, "an event")
        except BadJson:
            fields = None
        if not isinstance(fields, dict) or "unsigned" not in fields:
            raise
        kept = {name: value for name, value in fields.items() if name != "unsigned"}
        return replace(event_of(kept, version), raw=raw)
