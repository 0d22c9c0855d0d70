"""Events as a Synapse stores them: the JSON, its orderings, flags, edges and state group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from synrepl.core.jsons import BadJson, decode
from synrepl.storage.database import Record, Transaction

_SOFT_FAILED, _OUT_OF_BAND = "soft_failed", "out_of_band_membership"

_COLUMNS = """
    e.event_id, e.room_id, e.stream_ordering, e.topological_ordering, e.type, e.sender, e.depth,
    e.outlier, j.json, j.internal_metadata, x.reason, g.state_group,
    ARRAY(SELECT d.prev_event_id FROM event_edges d
          WHERE d.event_id = e.event_id AND NOT d.is_state ORDER BY 1)
"""

_BESIDE = """
    LEFT JOIN event_json j ON j.event_id = e.event_id
    LEFT JOIN rejections x ON x.event_id = e.event_id
    LEFT JOIN event_to_state_groups g ON g.event_id = e.event_id
"""

# The inner query tells the planner that there are few events, each of which is then looked up.
_PAGE = f"""
    SELECT {_COLUMNS} FROM (
        SELECT * FROM events WHERE room_id = %(room_id)s
          AND (topological_ordering, stream_ordering) > (%(topological)s, %(stream)s)
        ORDER BY topological_ordering, stream_ordering LIMIT %(limit)s
    ) AS e {_BESIDE} ORDER BY e.topological_ordering, e.stream_ordering
"""

_BY_ID = f"""
    SELECT {_COLUMNS} FROM events e {_BESIDE} WHERE e.event_id = ANY(%s)
    ORDER BY e.room_id, e.topological_ordering, e.stream_ordering
"""

_KNOWN = """
    SELECT e.event_id, j.json, x.event_id IS NOT NULL
    FROM events e JOIN event_json j ON j.event_id = e.event_id
    LEFT JOIN rejections x ON x.event_id = e.event_id
    WHERE e.event_id = ANY(%s) AND e.room_id = %s
"""

_PLACES = """
    SELECT e.event_id, e.topological_ordering, g.state_group
    FROM events e JOIN event_to_state_groups g ON g.event_id = e.event_id
    WHERE e.event_id = ANY(%s) AND e.room_id = %s AND NOT e.outlier
"""


class RoomPosition(NamedTuple):
    """A position in the topological order of a room's events; compares in that order."""

    topological: int
    stream: int


#: Before the first event of a room.
BEFORE_ALL = RoomPosition(-1, -(2**63))


class SourceEvent(NamedTuple):
    """An event as the server stores it.

    :ivar raw: the stored JSON; None if there is no such row
    :ivar outlier: whether it is kept only because others cite it
    :ivar out_of_band: an outlier for a membership in a room that the server has not joined, such as
        an invite
    :ivar soft_failed: whether the server soft-failed it
    :ivar rejected: why the server rejected it; None if it did not
    :ivar group: the state group after it; None for an outlier
    :ivar prev_event_ids: those in the table of edges, sorted
    """

    event_id: str
    room_id: str
    position: RoomPosition
    type: str
    sender: str | None
    depth: int
    raw: bytes | None
    outlier: bool
    out_of_band: bool
    soft_failed: bool
    rejected: str | None
    group: int | None
    prev_event_ids: tuple[str, ...]


class KnownRow(NamedTuple):
    """An event that others depend on."""

    event_id: str
    raw: bytes
    rejected: bool


class PlaceRow(NamedTuple):
    """An event that is part of the room's history: its state group, and its topological ordering."""

    event_id: str
    topological: int
    group: int


def events_after(
    txn: Transaction, room_id: str, after: RoomPosition, limit: int
) -> list[SourceEvent]:
    """A page of a room's events in topological order, outliers among them."""
    values = {
        "room_id": room_id,
        "topological": after.topological,
        "stream": after.stream,
        "limit": limit,
    }
    return [_event(row) for row in txn.execute(_PAGE, values).fetchall()]


def events_by_id(txn: Transaction, event_ids: Collection[str]) -> list[SourceEvent]:
    """Those of the events that exist, by room and in topological order."""
    return [_event(row) for row in txn.execute(_BY_ID, (list(event_ids),)).fetchall()]


def known_events(txn: Transaction, room_id: str, event_ids: Collection[str]) -> list[KnownRow]:
    """Those of the events that exist in a room."""
    rows = txn.execute(_KNOWN, (list(event_ids), room_id)).fetchall()
    return [KnownRow(event_id, raw.encode(), rejected) for event_id, raw, rejected in rows]


def event_places(txn: Transaction, room_id: str, event_ids: Collection[str]) -> list[PlaceRow]:
    """Those of the events that are part of a room's history: not outliers, and with a state."""
    rows = txn.execute(_PLACES, (list(event_ids), room_id)).fetchall()
    return [PlaceRow(event_id, topological, group) for event_id, topological, group in rows]


def redaction_targets(txn: Transaction, event_ids: Collection[str]) -> dict[str, str]:
    """By redaction, the event that the server recorded as its target."""
    txn.execute(
        "SELECT event_id, redacts FROM redactions WHERE event_id = ANY(%s)", (list(event_ids),)
    )
    return dict(txn.fetchall())


def _event(row: Record) -> SourceEvent:
    (
        event_id,
        room_id,
        stream,
        topological,
        kind,
        sender,
        depth,
        outlier,
        text,
        metadata,
        reason,
        group,
        prev_event_ids,
    ) = row
    flags = _flags(metadata)
    return SourceEvent(
        event_id,
        room_id,
        RoomPosition(topological, stream),
        kind,
        sender,
        depth,
        None if text is None else text.encode(),
        outlier,
        outlier and _OUT_OF_BAND in flags,
        _SOFT_FAILED in flags,
        reason,
        group,
        tuple(prev_event_ids),
    )


def _flags(metadata: str | None) -> frozenset[str]:
    """The flags that are set in an event's internal metadata."""
    if metadata is None or (_SOFT_FAILED not in metadata and _OUT_OF_BAND not in metadata):
        return frozenset()
    try:
        found: Any = decode(metadata, "internal_metadata")
    except BadJson:
        return frozenset()
    if not isinstance(found, dict):
        return frozenset()
    return frozenset(name for name in (_SOFT_FAILED, _OUT_OF_BAND) if found.get(name) is True)
