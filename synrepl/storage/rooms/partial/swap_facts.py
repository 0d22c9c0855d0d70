"""The facts by which followers hear that a room has its full state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.partial.swapped_state import StateSwap
from synrepl.storage.rooms.persisting import batch_facts
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.numbers import RoomRow, keys_of
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.streams.definition import Stream
from synrepl.streams.row import Json, Row
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.events import EVENTS, AllStateRow, StateRow
from synrepl.streams.synapse.un_partial_stated_event import (
    UN_PARTIAL_STATED_EVENT,
    UnPartialStatedEventRow,
)
from synrepl.streams.synapse.un_partial_stated_room import (
    PARTIAL_ROOM_CACHES,
    UN_PARTIAL_STATED_ROOM,
    UnPartialStatedRoomRow,
)

T = TypeVar("T")

#: The streams that completing a room appends to.
RESYNC_STREAMS: tuple[Stream, ...] = (
    *ROOM_STREAMS,
    UN_PARTIAL_STATED_ROOM,
    UN_PARTIAL_STATED_EVENT,
)

#: Rows of a fact, and users whose memberships a row of ``caches`` names.
_FACT_ROWS, _USERS = 100, 500

#: Events of a room that are named. Of more, those whose verdict changed come first, and all caches by event are cleared.
MAX_NAMED_EVENTS = 4_000


def append_swap_facts(
    outbox: Outbox,
    txn: Transaction,
    room: RoomRow,
    swapped: StateSwap,
    event_rows: Sequence[Row],
    events: int,
) -> None:
    """Tell of the full state of a room and its events, and of what changed of its current state.

    :param event_rows: what :func:`rows_of_events` returned
    :param events: the number of the room's events that were judged again
    """
    txn.execute("SELECT (extract(epoch FROM now()) * 1000)::bigint")
    now_ms = int(txn.fetchone()[0])
    room_id = room.room_id
    outbox.append(EVENTS, _state_rows(txn, room, swapped))
    members = _members(txn, room.room_no, swapped)
    stale: list[Row] = [
        CachesRow("cs_cache_fake", [room_id, *some], now_ms) for some in _parts(members, _USERS)
    ] or [CachesRow("cs_cache_fake", [room_id], now_ms)]
    # Listeners of older dialects have no stream that says so.
    key: list[Json] = [room_id]
    stale += [CachesRow(name, key, now_ms) for name in PARTIAL_ROOM_CACHES]
    if events > MAX_NAMED_EVENTS:
        stale.append(CachesRow("ph_cache_fake", key, now_ms))
    for some in _parts(stale, _FACT_ROWS):
        outbox.append(CACHES, some)
    for some in _parts(event_rows, _FACT_ROWS):
        outbox.append(UN_PARTIAL_STATED_EVENT, some)
    outbox.append(UN_PARTIAL_STATED_ROOM, [UnPartialStatedRoomRow(room_id)])


def _state_rows(txn: Transaction, room: RoomRow, swapped: StateSwap) -> list[Row]:
    """The rows of the change of the current state; that all of it is to be read where it is large, or there is none."""
    change = swapped.change
    if not change or len(change) >= batch_facts.ALL_STATE_ROWS:
        return [AllStateRow(room.room_id)]
    keys = keys_of(txn, room.room_no, change)
    txn.execute(
        "SELECT event_no, event_id FROM synrepl._room_events WHERE event_no = ANY (%s::bigint[])",
        (array_text([each for each in change.values() if each is not None]),),
    )
    ids: dict[int, str] = dict(txn.fetchall())
    return [
        StateRow(room.room_id, *keys[slot], None if number is None else ids[number])
        for slot, number in change.items()
    ]


def _members(txn: Transaction, room_no: int, swapped: StateSwap) -> list[str]:
    """The users whose memberships changed."""
    txn.execute(
        "SELECT state_key FROM synrepl._room_keys WHERE room_no = %s AND type = 'm.room.member'"
        " AND slot = ANY (%s::int[]) ORDER BY slot",
        (room_no, array_text(list(swapped.change))),
    )
    return [str(user) for (user,) in txn.fetchall()]


def rows_of_events(txn: Transaction, room_no: int) -> list[Row]:
    """Rows for the events that have partial state, or will have another verdict, once the outcomes take effect."""
    rejected, partial = int(EventFlags.REJECTED), int(EventFlags.PARTIAL)
    txn.execute(
        "SELECT event_id, has_changed FROM (SELECT e.event_id, e.stream_id, e.flags,"
        "  (e.flags # r.full_flags) & %(rejected)s <> 0 AS has_changed"
        "  FROM synrepl._resync_events r JOIN synrepl._room_events e USING (event_no)"
        "  WHERE r.room_no = %(room)s AND e.stream_id IS NOT NULL) AS e"
        " WHERE has_changed OR flags & %(partial)s <> 0"
        " ORDER BY has_changed DESC, stream_id LIMIT %(most)s",
        {"room": room_no, "rejected": rejected, "partial": partial, "most": MAX_NAMED_EVENTS},
    )
    return [UnPartialStatedEventRow(event_id, changed) for event_id, changed in txn.fetchall()]


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
