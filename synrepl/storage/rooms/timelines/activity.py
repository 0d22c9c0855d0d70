"""When something was said in rooms last."""

from __future__ import annotations

from collections.abc import Collection

from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.visibility.audience import NEVER_BITS
from synrepl.storage.rooms.visibility.covered_sql import covered_params, covered_sql

#: Types of events that count as activity.
#: Source: MSC4186, ``bump_stamp``.
ACTIVITY_TYPES = (
    "m.room.create",
    "m.room.message",
    "m.room.encrypted",
    "m.sticker",
    "m.call.invite",
    "m.poll.start",
    "m.beacon_info",
)

#: Events of a room that are looked through, from the newest back. If none of them counts, the oldest of them does.
MAX_LOOKED_AT = 100


def newest_activity(
    txn: Transaction, room_nos: Collection[int], upto: PositionVector
) -> dict[int, int]:
    """The stream orderings of the newest events that count, by number of the room."""
    if not room_nos:
        return {}
    txn.execute(
        "SELECT w.room_no, coalesce(max(e.stream_id) FILTER (WHERE e.counts), min(e.stream_id), 0)"
        " FROM unnest(%(rooms)s::int[]) AS w (room_no) LEFT JOIN LATERAL ("
        "  SELECT e.stream_id, t.type = ANY (%(types)s::text[]) AS counts"
        "   FROM synrepl._room_events e JOIN synrepl._event_types t USING (type_no)"
        "   WHERE e.room_no = w.room_no AND e.stream_id > 0"
        f"  AND e.audience & {NEVER_BITS} = 0 AND {covered_sql(upto, 'upto')}"
        f"  ORDER BY e.stream_id DESC LIMIT {MAX_LOOKED_AT}) AS e ON true GROUP BY w.room_no",
        {
            "rooms": list(room_nos),
            "types": array_text(ACTIVITY_TYPES),
            **covered_params(upto, "upto"),
        },
    )
    return {int(number): int(stream_id) for number, stream_id in txn.fetchall()}
