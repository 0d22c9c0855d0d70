"""The JSON from which events for clients are made, of many rooms at once.

A damaged event is named and left out, so that the other rooms of an answer are served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.errors import StorageError
from synrepl.rooms import BadEvent, RoomVersion, canonical_json, parse_event, redact, room_version
from synrepl.storage.database import Transaction, planned
from synrepl.storage.rooms.tables.events import CorruptEvent, MissingJson, checksum
from synrepl.storage.rooms.tables.pending_rows import array_text


class WantedEvent(NamedTuple):
    """An event whose JSON is wanted.

    :ivar version: of its room
    :ivar is_whole: whether it is served as it came, unless it was redacted
    """

    event_no: int
    version: str
    is_whole: bool = True


class EventSource(NamedTuple):
    """An event as it is served.

    :ivar json: in federation format; in the redacted form if it was redacted or is not to be seen whole
    :ivar sender: as stored
    :ivar sent_at: ``origin_server_ts``, in milliseconds
    :ivar stream_id: None for an outlier
    :ivar redacted_by: number of the redaction that applies to it
    """

    event_no: int
    event_id: str
    sender: str
    sent_at: int
    stream_id: int | None
    redacted_by: int | None
    json: bytes


class EventSources(NamedTuple):
    """Events by number, and why others cannot be served."""

    events: Mapping[int, EventSource]
    damaged: Mapping[int, StorageError]


#: What :func:`sources_from` wants of an event ``e`` and its JSON ``j``, before ``j.raw``.
SOURCE_CELLS = (
    "e.event_no, e.event_id, e.sender, e.origin_server_ts, e.stream_id, e.redacted_by, j.checksum"
)


def read_sources(txn: Transaction, wanted: Collection[WantedEvent]) -> EventSources:
    """The JSON of events."""
    if not wanted:
        return EventSources({}, {})
    versions = {each.event_no: each for each in wanted}
    txn.execute(_SOURCES, (array_text(versions),))
    return sources_from(txn.fetchall(), versions)


_SOURCES = planned(
    f"SELECT {SOURCE_CELLS}, j.raw FROM synrepl._room_events e"
    " LEFT JOIN synrepl._room_event_json j USING (event_no)"
    " WHERE e.event_no = ANY (%s::bigint[])"
)


def sources_from(rows: Iterable[Sequence[Any]], wanted: Mapping[int, WantedEvent]) -> EventSources:
    """Events from rows of :data:`SOURCE_CELLS` and ``raw``; those of ``wanted`` without a row are damaged."""
    events: dict[int, EventSource] = {}
    damaged: dict[int, StorageError] = {}
    for event_no, event_id, sender, sent_at, stream_id, redacted_by, stored, raw in rows:
        each = wanted[event_no]
        try:
            json = _checked(event_no, event_id, stored, raw)
            if not each.is_whole or redacted_by is not None:
                json = _redacted(event_no, event_id, json, room_version(each.version))
        except (CorruptEvent, MissingJson) as error:
            damaged[event_no] = error
            continue
        events[event_no] = EventSource(
            event_no, event_id, sender, sent_at, stream_id, redacted_by, json
        )
    for event_no in wanted.keys() - events.keys() - damaged.keys():
        damaged[event_no] = MissingJson(event_id="?", event_no=event_no)
    return EventSources(events, damaged)


def _checked(event_no: int, event_id: str, stored: int | None, raw: object) -> bytes:
    if stored is None or not isinstance(raw, (bytes, memoryview)):
        raise MissingJson(event_id=event_id, event_no=event_no)
    json = bytes(raw)
    if checksum(event_id, json) != stored:
        reason = "they do not fit their checksum"
        raise CorruptEvent(event_id=event_id, event_no=event_no, reason=reason)
    return json


def _redacted(event_no: int, event_id: str, json: bytes, version: RoomVersion) -> bytes:
    try:
        return canonical_json(redact(parse_event(json, version).fields, version))
    except BadEvent as error:
        raise CorruptEvent(event_id=event_id, event_no=event_no, reason=str(error)) from error


class ReplacedEntry(NamedTuple):
    """A state event, by where it stands in its room's states.

    :ivar group_before: the state before it
    """

    event_no: int
    room_no: int
    group_before: int
    slot: int


def replaced_entries(txn: Transaction, entries: Sequence[ReplacedEntry]) -> dict[int, int]:
    """The numbers of the events that state events replaced, by their own; those that replaced none are left out."""
    if not entries:
        return {}
    txn.execute(_REPLACED, tuple(map(list, zip(*entries, strict=True))))
    return {int(new): int(old) for new, old in txn.fetchall() if old is not None}


_REPLACED = planned(
    "SELECT w.event_no, synrepl.state_entry(w.room_no, w.group_before, w.slot)"
    " FROM unnest(%s::bigint[], %s::int[], %s::bigint[], %s::int[])"
    " AS w (event_no, room_no, group_before, slot)"
)
