"""The newest events of rooms with everything that their members are told of them, in one statement.

Nothing in it depends on who asks, so one read serves all members of a room. What a member sees follows from the row:
see :mod:`synrepl.services.rooms.timelines.room_tails`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.errors import StorageError
from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering, StateKey
from synrepl.storage.database import PlannedOnce, Record, Script, Transaction
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.timelines.event_sources import (
    EVENT_AND_JSON,
    SOURCE_CELLS,
    EventSource,
    WantedEvent,
    sources_from,
)
from synrepl.storage.rooms.timelines.room_entries import MEMBER
from synrepl.storage.rooms.timelines.room_summaries import StoredSummary, room_summaries

#: Maximum number of events in a tail.
TAIL_EVENTS = 32

#: Tokens between a linear position and a writer's up to which it is worth a look what the client has of them.
MAX_LAG = 1_000

_AFTER_GAP = int(EventFlags.AFTER_GAP)


class TailEvent(NamedTuple):
    """An event of a tail.

    :ivar writer: of its fact; None if the fact is not in the table any more
    :ivar state_key: None for a message event
    :ivar slot: of its state key; None for a message event
    :ivar audience: see :mod:`~synrepl.storage.rooms.visibility.audience`
    :ivar is_after_gap: whether events before it were missing when it came
    """

    event_no: int
    event_id: str
    ordering: EventOrdering
    writer: str | None
    type: str
    state_key: str | None
    slot: int | None
    sender: str
    sent_at: int
    redacted_by: int | None
    group_before: int
    group_after: int
    audience: int
    is_after_gap: bool


class TailChange(NamedTuple):
    """A change of a room's current state.

    :ivar key: None: so much changed that the whole state has to be read
    :ivar event_no: number of the new event; None if the entry was removed
    """

    stream_id: Token
    key: StateKey | None
    event_no: int | None


class SentUnder(NamedTuple):
    """The request by which an event was sent."""

    user_id: str
    device_id: str
    txn_id: str


class StoredTail(NamedTuple):
    """The newest events of a room.

    :ivar version: of the room
    :ivar floor: live events and changes of the state with higher stream orderings are all here
    :ivar since: also whatever this vector does not cover; None if the tail is too short for that
    :ivar newest: stream ordering of the newest event
    :ivar topological: the highest topological ordering in the room
    :ivar state_only: stream ID of the newest fact that changed the state without an event of its own
    :ivar purged: the highest stream ordering of the room's purged events; 0 if there are none
    :ivar current_group: the current state, as a group
    :ivar is_partial: whether the room has partial state
    :ivar events: in stream order
    :ivar changes: in stream order
    :ivar members: numbers of the events that set the current memberships of the senders
    :ivar replaced: by the number of a state event, that of the event that it replaced
    :ivar sources: the JSON of all these events, and of redactions that apply to them, by number
    :ivar damaged: why it cannot be used
    :ivar requests: by event ID, of events that users of this server sent
    :ivar summary: None where no membership changed
    """

    room_no: int
    room_id: str
    version: str
    floor: Token
    since: PositionVector | None
    newest: Token
    topological: int
    state_only: Token
    purged: Token
    current_group: int
    is_partial: bool
    events: Sequence[TailEvent]
    changes: Sequence[TailChange]
    members: Mapping[str, int]
    replaced: Mapping[int, int]
    sources: Mapping[int, EventSource]
    damaged: StorageError | None
    requests: Mapping[str, SentUnder]
    summary: StoredSummary | None

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        return sum(len(each.json) for each in self.sources.values()) + 1_000 * len(self.sources)


def read_tails(
    txn: Transaction, room_ids: Collection[str], since: PositionVector
) -> list[StoredTail]:
    """The tails of rooms; rooms that are not in the store are left out.

    :param since: events that it does not cover are wanted. The tail goes back to the event before that
    """
    is_near = since.highest - since.linear <= MAX_LAG
    params = {
        "rooms": array_text(room_ids),
        "linear": since.linear,
        "highest": since.highest if is_near else since.linear,
        "writers": array_text(since.writers),
        "tokens": array_text(list(since.writers.values())),
        "limit": TAIL_EVENTS,
    }
    txn.execute(_TAILS, params)
    tails = _assembled(txn.fetchall(), since)
    moved = [
        each.room_no for each in tails if any(c.key and c.key[0] == MEMBER for c in each.changes)
    ]
    summaries = room_summaries(txn, moved)
    return [each._replace(summary=summaries.get(each.room_no)) for each in tails]


def _assembled(rows: Iterable[Record], since: PositionVector) -> list[StoredTail]:
    """Tails from the rows of :data:`_TAILS`, without summaries."""
    parts: dict[str, dict[int, list[Sequence[Any]]]] = defaultdict(lambda: defaultdict(list))
    for part, room_no, cells, raw in rows:
        parts[part][room_no].append((*cells, raw))
    tails: list[StoredTail] = []
    for room_no, ((room_id, version, previous, newest, topological, *head, _),) in parts[
        "room"
    ].items():
        state_only, purged, current_group, is_partial = head
        events = sorted(map(_event, parts["event"][room_no]), key=lambda each: each.ordering.stream)
        floor = max(previous or 0, 0)
        is_short = len(events) == TAIL_EVENTS
        if is_short:
            floor = events[0].ordering.stream - 1
        wanted = {number: WantedEvent(number, version) for (number, *_) in parts["source"][room_no]}
        sources = sources_from(parts["source"][room_no], wanted)
        tails.append(
            StoredTail(
                room_no,
                room_id,
                version,
                floor,
                None if is_short else since,
                newest,
                topological,
                state_only,
                purged,
                current_group,
                is_partial,
                events,
                [
                    _change(each)
                    for each in sorted(
                        parts["change"][room_no], key=lambda each: (each[0], each[1])
                    )
                ],
                {sender: number for sender, number, _ in parts["member"][room_no]},
                {number: old for number, old, _ in parts["replaced"][room_no]},
                sources.events,
                next(iter(sources.damaged.values()), None),
                {event_id: SentUnder(*sent) for event_id, *sent, _ in parts["sent"][room_no]},
                None,
            )
        )
    return tails


def _event(cells: Sequence[Any]) -> TailEvent:
    event_no, event_id, topological, stream_id, *rest, _ = cells
    return TailEvent(event_no, event_id, EventOrdering(topological, stream_id), *rest)


def _change(cells: Sequence[Any]) -> TailChange:
    stream_id, _, kind, event_type, state_key, event_no, _ = cells
    key = None if kind == "state-all" else (event_type, state_key)
    return TailChange(stream_id, key, event_no)


# Each row says which part it belongs to, of which room it is, and has cells of its own. Events are looked up one by one
# (OFFSET 0): the plan stays while tables grow, and one that was made when they were small would read them as a whole.
_TAILS = Script(
    [
        # Planning takes longer than running it, and a plan for these rooms would be no other.
        "SET LOCAL plan_cache_mode = force_generic_plan",
        "SET LOCAL jit = off",
        PlannedOnce(
            f"""
            WITH room AS MATERIALIZED (
                SELECT r.room_no, r.room_id, r.version, h.stream_id, h.topological,
                       h.current_group, h.state_stream_id, h.purged_stream_id,
                       p.room_no IS NOT NULL AS is_partial,
                       CASE WHEN EXISTS (
                           SELECT FROM synrepl._room_events e
                             LEFT JOIN synrepl.events f ON f.stream_id = e.stream_id AND f.row_no = 0
                             LEFT JOIN unnest(%(writers)s::text[], %(tokens)s::bigint[]) AS c (writer, token)
                               ON c.writer = f.writer
                            WHERE e.room_no = r.room_no AND e.stream_id > %(linear)s::bigint
                              AND e.stream_id <= %(highest)s::bigint
                              AND (c.token IS NULL OR e.stream_id > c.token)
                       ) THEN %(linear)s::bigint ELSE %(highest)s::bigint END AS since
                  FROM unnest(%(rooms)s::text[]) AS w (room_id)
                  JOIN synrepl._rooms r USING (room_id) JOIN synrepl._room_heads h USING (room_no)
                  LEFT JOIN synrepl._partial_rooms p USING (room_no)
            ), recent AS MATERIALIZED (
                SELECT e.* FROM room CROSS JOIN LATERAL (
                    SELECT e.* FROM synrepl._room_events e
                     WHERE e.room_no = room.room_no AND e.stream_id IS NOT NULL
                       AND e.stream_id > room.since
                     ORDER BY e.stream_id DESC LIMIT %(limit)s) AS e
            ), change AS MATERIALIZED (
                SELECT e.room_no, f.stream_id, f.row_no, f.kind, f.type, f.state_key, n.event_no
                  FROM recent e JOIN room USING (room_no)
                 CROSS JOIN LATERAL (SELECT * FROM synrepl.events
                                      WHERE stream_id = e.stream_id OFFSET 0) AS f
                  LEFT JOIN LATERAL (SELECT event_no FROM synrepl._room_events
                                      WHERE event_id = f.event_id OFFSET 0) AS n ON true
                 WHERE f.kind IN ('state', 'state-all') AND f.room_id = room.room_id
            ), replaced AS MATERIALIZED (
                SELECT e.room_no, e.event_no, synrepl.state_entry(e.room_no, e.group_before, e.slot) AS old_no
                  FROM recent e WHERE e.slot IS NOT NULL
            ), member AS MATERIALIZED (
                SELECT s.room_no, s.sender, c.event_no
                  FROM (SELECT DISTINCT room_no, sender FROM recent) AS s
                 CROSS JOIN LATERAL (SELECT slot FROM synrepl._room_keys
                                      WHERE room_no = s.room_no AND type = '{MEMBER}'
                                        AND state_key = s.sender OFFSET 0) AS k
                 CROSS JOIN LATERAL (SELECT event_no FROM synrepl._current_state
                                      WHERE room_no = s.room_no AND slot = k.slot OFFSET 0) AS c
            ), named AS MATERIALIZED (
                SELECT room_no, event_no FROM recent UNION SELECT room_no, event_no FROM change
                UNION SELECT room_no, old_no FROM replaced UNION SELECT room_no, event_no FROM member
            ), needed AS MATERIALIZED (
                SELECT room_no, event_no FROM named WHERE event_no IS NOT NULL
                UNION
                SELECT n.room_no, e.redacted_by FROM named n
                 CROSS JOIN LATERAL (SELECT redacted_by FROM synrepl._room_events
                                      WHERE event_no = n.event_no OFFSET 0) AS e
                 WHERE e.redacted_by IS NOT NULL
            )
            SELECT 'room' AS part, r.room_no, json_build_array(r.room_id, r.version,
                   (SELECT max(e.stream_id) FROM synrepl._room_events e
                     WHERE e.room_no = r.room_no AND e.stream_id IS NOT NULL AND e.stream_id <= r.since),
                   r.stream_id, r.topological, r.state_stream_id, r.purged_stream_id, r.current_group,
                   r.is_partial), NULL::bytea
              FROM room r
            UNION ALL
            SELECT 'event', e.room_no, json_build_array(e.event_no, e.event_id, e.topological, e.stream_id,
                   f.writer, t.type, k.state_key, e.slot, e.sender, e.origin_server_ts, e.redacted_by,
                   e.group_before, e.group_after, e.audience, e.flags & {_AFTER_GAP} <> 0), NULL
              FROM recent e JOIN synrepl._event_types t USING (type_no)
              LEFT JOIN LATERAL (SELECT state_key FROM synrepl._room_keys
                                  WHERE room_no = e.room_no AND slot = e.slot OFFSET 0) AS k ON true
              LEFT JOIN LATERAL (SELECT writer FROM synrepl.events
                                  WHERE stream_id = e.stream_id AND row_no = 0 OFFSET 0) AS f ON true
            UNION ALL
            SELECT 'change', room_no,
                   json_build_array(stream_id, row_no, kind, type, state_key, event_no), NULL
              FROM change
            UNION ALL
            SELECT 'replaced', room_no, json_build_array(event_no, old_no), NULL
              FROM replaced WHERE old_no IS NOT NULL
            UNION ALL
            SELECT 'member', room_no, json_build_array(sender, event_no), NULL FROM member
            UNION ALL
            SELECT 'sent', e.room_no, json_build_array(event_id, s.user_id, s.device_id, s.txn_id), NULL
              FROM recent e JOIN synrepl._sent_events s USING (event_id)
            UNION ALL
            SELECT 'source', n.room_no, json_build_array({SOURCE_CELLS}), j.raw
              FROM needed n JOIN {EVENT_AND_JSON}"""
        ),
    ]
)
