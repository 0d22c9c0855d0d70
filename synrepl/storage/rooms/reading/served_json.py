"""The JSON of events as a user or a server gets it: as it came, or in its redacted form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from synrepl.rooms import RoomVersion, canonical_json, redact
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import events_by_number, parsed_events, raw_json


class Serving(Protocol):
    """An event that was found visible."""

    @property
    def event_no(self) -> int:
        """Its number."""
        ...

    @property
    def event_id(self) -> str:
        """Its ID."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether it is served as it came."""
        ...


def served_json(txn: Transaction, version: RoomVersion, events: Sequence[Serving]) -> list[bytes]:
    """The JSON of events in federation format.

    :param version: of their room
    :raises MissingJson: an event has none
    :raises CorruptEvent: the stored bytes are not those of the event
    """
    stored = events_by_number(txn, [each.event_no for each in events])
    whole = [stored[each.event_no] for each in events if each.is_whole]
    found = raw_json(txn, whole)
    others = [stored[each.event_no] for each in events if not each.is_whole]
    for event_id, event in parsed_events(txn, version, others).items():
        found[event_id] = canonical_json(redact(event.fields, version))
    return [found[each.event_id] for each in events]
