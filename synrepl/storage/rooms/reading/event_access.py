"""Events as readers get them: with their JSON, or by a named error why not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.core.errors import InputError, Unavailable
from synrepl.rooms import Event, RoomVersion, canonical_json, redact, room_version
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import (
    EventFlags,
    StoredEvent,
    events_by_id,
    parsed_events,
    refusal_of,
)
from synrepl.storage.rooms.tables.numbers import RoomRow, event_ids_of, room_by_number
from synrepl.storage.rooms.visibility.erased_users import erased_among

#: Maximum number of events, or of state keys, in one request.
MAX_NAMED = 1_000


class EventNotStored(InputError):
    """event {event_id} is not in the store"""


class EventInOtherRoom(InputError):
    """event {event_id} is in room {room_id}, not in {expected}"""


class EventRejected(InputError):
    """event {event_id} was rejected: {reason}; it is no part of the room, and nothing is built upon it"""


class EventIsOutlier(InputError):
    """event {event_id} is an outlier: it is here only because others cite it, so the state at it is not known"""


class PartialEvent(Unavailable):
    """the state at event {event_id} is partial until the room's resync is complete; try again later"""


class TooManyNamed(InputError):
    """{count} {what} were named; at most {limit} may be"""


class EventCopy(NamedTuple):
    """An event as it is served.

    :ivar json: as it came, or in its redacted form
    :ivar redacted_by: the redaction that applies to it
    :ivar refusal: why it was rejected or soft-failed, as a sentence
    :ivar stream_id: its stream ordering; None for an outlier
    :ivar topological: its topological ordering; None for an outlier
    """

    event_id: str
    room_id: str
    version: str
    type: str
    state_key: str | None
    sender: str
    flags: EventFlags
    refusal: str | None
    redacted_by: str | None
    stream_id: int | None
    topological: int | None
    json: bytes


def check_named(what: str, named: Collection[object], limit: int = MAX_NAMED) -> None:
    """Bound the size of a request.

    :param what: what is named, in the plural
    :raises TooManyNamed: it is too large
    """
    if len(named) > limit:
        raise TooManyNamed(count=len(named), what=what, limit=limit)


def require_event(txn: Transaction, event_id: str) -> StoredEvent:
    """An event of any kind.

    :raises EventNotStored: it is not here
    """
    (found,) = require_events(txn, [event_id])
    return found


def require_events(txn: Transaction, event_ids: Sequence[str]) -> list[StoredEvent]:
    """Events of any kind, in the order of their IDs.

    :raises EventNotStored: one is not here
    """
    # No text in PostgreSQL can have NUL, so neither can an event that is here.
    found = events_by_id(txn, [each for each in event_ids if "\0" not in each])
    for each in event_ids:
        if each not in found:
            raise EventNotStored(event_id=each.replace("\0", "\ufffd"))
    return [found[each] for each in event_ids]


def require_full(event: StoredEvent, *, rejected: bool = False, partial: bool = False) -> None:
    """Check that an event has a place in its room, and that the state at it is known.

    :param rejected: whether a rejected event will do
    :param partial: whether partial state will do
    :raises EventIsOutlier: :raises EventRejected: :raises PartialEvent:
    """
    if event.is_outlier:
        raise EventIsOutlier(event_id=event.event_id)
    if event.is_rejected and not rejected:
        raise EventRejected(event_id=event.event_id, reason=refusal_sentence(event))
    if event.flags & EventFlags.PARTIAL and not partial:
        raise PartialEvent(event_id=event.event_id)


def require_same_room(room: RoomRow, event: StoredEvent, room_id: str) -> None:
    """Check that events are in one room.

    :param room: that of ``event``
    :raises EventInOtherRoom:
    """
    if room.room_id != room_id:
        raise EventInOtherRoom(event_id=event.event_id, room_id=room.room_id, expected=room_id)


def refusal_sentence(event: StoredEvent) -> str | None:
    """Why an event was rejected or soft-failed."""
    return None if event.refusal is None else refusal_of(event.refusal)[1].sentence


def read_events(
    txn: Transaction, event_ids: Sequence[str], *, as_it_came: bool = False
) -> dict[str, EventCopy]:
    """Events with their JSON, by ID; those that are not here are left out.

    Every event is parsed, and its ID computed again, before it is returned.

    :param as_it_came: whether an event that was redacted, or whose sender was erased, is returned as stored
    :raises TooManyNamed: more than :data:`MAX_NAMED`
    :raises MissingJson: :raises CorruptEvent: what is stored is damaged
    """
    check_named("events", event_ids)
    stored = events_by_id(txn, [each for each in event_ids if "\0" not in each])
    copies: dict[str, EventCopy] = {}
    by_room: dict[int, list[StoredEvent]] = {}
    for each in stored.values():
        by_room.setdefault(each.room_no, []).append(each)
    erased = (
        frozenset() if as_it_came else erased_among(txn, {each.sender for each in stored.values()})
    )
    for room_no, events in by_room.items():
        room = room_by_number(txn, room_no)
        version = room_version(room.version)
        redactions = {each.redacted_by for each in events if each.redacted_by is not None}
        names = event_ids_of(txn, room_no, redactions)
        for event_id, event in parsed_events(txn, version, events).items():
            row = stored[event_id]
            redacted_by = None if row.redacted_by is None else names[row.redacted_by]
            is_whole = as_it_came or (redacted_by is None and row.sender not in erased)
            copies[event_id] = _copy(row, room, event, redacted_by, is_whole, version)
    return {each: copies[each] for each in event_ids if each in copies}


def _copy(
    row: StoredEvent,
    room: RoomRow,
    event: Event,
    redacted_by: str | None,
    is_whole: bool,
    version: RoomVersion,
) -> EventCopy:
    return EventCopy(
        row.event_id,
        room.room_id,
        room.version,
        row.type,
        event.state_key,
        row.sender,
        EventFlags(row.flags),
        refusal_sentence(row),
        redacted_by,
        row.stream_id,
        row.topological,
        event.raw if is_whole else canonical_json(redact(event.fields, version)),
    )
