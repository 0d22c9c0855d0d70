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


class EventAtState(NamedTuple):
    """An event of a timeline, by where it stands in its room's states.

    :ivar group_before: the state before it
    :ivar slot: of its state key; None for a message event
    """

    event_no: int
    room_no: int
    group_before: int
    slot: int | None


class AnswerRows(NamedTuple):
    """What events for one client are made of.

    :ivar rooms: by number of each event, including those that others replaced and the redactions that apply, its room
    :ivar rows: for :func:`sources_from`
    :ivar replaced: by the number of a state event, that of the event that it replaced
    :ivar sent: by event ID, the transaction IDs under which the client's device sent events
    """

    rooms: dict[int, int]
    rows: list[Sequence[Any]]
    replaced: dict[int, int]
    sent: dict[str, str]


def read_answer_rows(
    txn: Transaction,
    shown: Sequence[EventAtState],
    entries: Collection[int],
    user_id: str,
    device_id: str | None,
) -> AnswerRows:
    """Read everything for the events of an answer, in one statement; and in one more if any of them is redacted.

    :param shown: events of timelines
    :param entries: numbers of state events besides
    :param device_id: of the client; None: transaction IDs are not wanted
    """
    found = AnswerRows({}, [], {}, {})
    if not shown and not entries:
        return found
    _add_rows(found, txn, shown, entries, user_id, device_id)
    _add_redactions(found, txn)
    return found


class CurrentMembers(NamedTuple):
    """The memberships in a room's current state.

    :ivar numbers: of their events
    :ivar rows: what the events are made of
    """

    numbers: list[int]
    rows: AnswerRows


def read_current_members(txn: Transaction, room_no: int) -> CurrentMembers:
    """Read the current memberships of a room with their events, in one statement; and in one more if any is redacted."""
    found = CurrentMembers([], AnswerRows({}, [], {}, {}))
    for event_no, *row in txn.execute(_MEMBERS, (room_no,)).fetchall():
        found.numbers.append(event_no)
        if row[0] is not None:
            found.rows.rows.append(row)
            found.rows.rooms[event_no] = room_no
    _add_redactions(found.rows, txn)
    return found


def _add_redactions(found: AnswerRows, txn: Transaction) -> None:
    """Add the redactions that apply to what was read."""
    redactions = {row[_REDACTED_BY] for row in found.rows} - found.rooms.keys() - {None}
    if redactions:
        _add_rows(found, txn, (), redactions, "", None)


def _add_rows(
    found: AnswerRows,
    txn: Transaction,
    shown: Sequence[EventAtState],
    entries: Collection[int],
    user_id: str,
    device_id: str | None,
) -> None:
    numbers, room_nos, groups, slots = zip(*shown, strict=True) if shown else ((), (), (), ())
    txn.execute(
        _ANSWER,
        {
            "numbers": array_text(numbers),
            "rooms": array_text(room_nos),
            "groups": array_text(groups),
            "slots": array_text(slots),
            "entries": array_text(entries),
            "user": user_id,
            "device": device_id,
        },
    )
    rooms, rows, replaced, sent = found
    for *row, room_no, old_no, txn_id in txn.fetchall():
        rows.append(row)
        rooms[row[0]] = room_no
        if old_no is not None:
            replaced[row[0]] = old_no
        if txn_id is not None:
            sent[row[1]] = txn_id


_REDACTED_BY = SOURCE_CELLS.split(", ").index("e.redacted_by")

#: An event ``e`` and its JSON ``j`` by the number ``n.event_no``. OFFSET makes each a look-up: for what may be few or many
#: events, the planner would read a small table whole.
EVENT_AND_JSON = """LATERAL (
           SELECT e.event_no, e.event_id, e.sender, e.origin_server_ts, e.stream_id, e.redacted_by, e.room_no
             FROM synrepl._room_events e WHERE e.event_no = n.event_no OFFSET 0) AS e ON true
      LEFT JOIN LATERAL (
           SELECT j.checksum, j.raw FROM synrepl._room_event_json j
            WHERE j.event_no = n.event_no OFFSET 0) AS j ON true"""
_ANSWER = planned(
    f"""
    WITH shown AS MATERIALIZED (
        SELECT w.event_no,
               CASE WHEN w.slot IS NOT NULL
                    THEN synrepl.state_entry(w.room_no, w.group_before, w.slot) END AS old_no
          FROM unnest(%(numbers)s::bigint[], %(rooms)s::int[], %(groups)s::bigint[], %(slots)s::int[])
               AS w (event_no, room_no, group_before, slot)
    )
    SELECT {SOURCE_CELLS}, j.raw, e.room_no, n.old_no, t.txn_id
      FROM (SELECT named.event_no, max(named.old_no) AS old_no
              FROM (SELECT event_no, old_no FROM shown
                    UNION ALL SELECT old_no, NULL FROM shown WHERE old_no IS NOT NULL
                    UNION ALL SELECT unnest(%(entries)s::bigint[]), NULL) AS named
             GROUP BY named.event_no) AS n
      JOIN {EVENT_AND_JSON}
      LEFT JOIN LATERAL (
           SELECT t.txn_id FROM synrepl._sent_events t
            WHERE e.sender = %(user)s AND t.event_id = e.event_id AND t.user_id = %(user)s
              AND t.device_id = %(device)s
            LIMIT 1) AS t ON true"""
)
_MEMBERS = planned(
    f"""
    SELECT n.event_no, {SOURCE_CELLS}, j.raw
      FROM synrepl._room_keys k JOIN synrepl._current_state n USING (room_no, slot)
      LEFT JOIN {EVENT_AND_JSON}
     WHERE k.room_no = %s AND k.type = 'm.room.member'"""
)
