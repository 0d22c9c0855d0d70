"""The facts of a batch: rows of the streams ``events``, ``backfill`` and ``caches``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.rooms import Delta, Event, StateKey
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.tables.pending_event import PendingEvent
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.events import EVENTS, AllStateRow, EventRow, StateRow

#: The streams that persisting appends to.
ROOM_STREAMS: tuple[Stream, ...] = (EVENTS, BACKFILL, CACHES)

#: From this number of changed entries on, followers are told to read the whole current state.
ALL_STATE_ROWS = 150


class FactPlaces(NamedTuple):
    """Which fact tells of what; places count from 0 within their stream.

    :ivar live: by event number, the place in ``events``
    :ivar backfilled: by event number, the place in ``backfill``
    :ivar entries: by key, the place in ``events`` of the fact that changes the current state
    """

    live: dict[int, int]
    backfilled: dict[int, int]
    entries: dict[StateKey, int]


def append_facts(
    outbox: Outbox, room_id: str, pending: Sequence[PendingEvent], change: Delta, now_ms: int
) -> FactPlaces:
    """Append one fact per event, with the changes of the current state that it brings.

    A change by an event that is not among the new ones, as after a resolution, goes with the last fact.

    :param change: of the current state
    """
    places = FactPlaces({}, {}, {})
    keys = [*change.entries, *sorted(change.removed)]
    is_many = len(keys) >= ALL_STATE_ROWS
    left = dict.fromkeys(keys)
    facts: list[list[Row]] = []
    for each in pending:
        row = each.row
        if row.is_outlier:
            continue
        if each.backfilled:
            places.backfilled[row.event_no] = len(places.backfilled)
            outbox.append(BACKFILL, [_backfill_row(each.event)])
            continue
        places.live[row.event_no] = len(facts)
        rows: list[Row] = [_event_row(each)]
        key = (row.type, each.event.state_key)
        if key in left and change.entries.get(key) == row.event_id:
            places.entries[key] = len(facts)
            del left[key]
            if not is_many:
                rows.append(StateRow(room_id, *key, row.event_id))
        facts.append(rows)
    if left and not facts:
        facts.append([])
    for key in left:
        places.entries[key] = len(facts) - 1
        if not is_many:
            facts[-1].append(StateRow(room_id, *key, change.entries.get(key)))
    if is_many:
        facts[-1].append(AllStateRow(room_id))
    for rows in facts:
        outbox.append(EVENTS, rows)
    if keys:
        members = [state_key for kind, state_key in keys if kind == "m.room.member"]
        outbox.append(CACHES, [CachesRow("cs_cache_fake", [room_id, *members], now_ms)])
    return places


def _event_row(pending: PendingEvent) -> EventRow:
    event = pending.event
    membership = _text(event.membership) if event.type == "m.room.member" else None
    return EventRow(
        event.event_id,
        event.room_id,
        event.type,
        event.state_key,
        _text(event.redacts),
        _relates_to(event),
        membership,
        pending.row.is_rejected,
        False,
    )


def _backfill_row(event: Event) -> BackfillRow:
    return BackfillRow(
        event.event_id,
        event.room_id,
        event.type,
        event.state_key,
        _text(event.redacts),
        _relates_to(event),
    )


def _relates_to(event: Event) -> str | None:
    relation = event.content.get("m.relates_to")
    return _text(relation.get("event_id")) if isinstance(relation, dict) else None


def _text(value: object) -> str | None:
    """A text that a column can hold; None for anything else."""
    return value if isinstance(value, str) and "\0" not in value else None
