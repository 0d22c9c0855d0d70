"""What is stored of a random room, for what users should see of it."""

from __future__ import annotations

from synrepl.rooms import EventOrdering, Room, audience_of
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import events_by_id
from tests.storage.rooms.written_rooms import WrittenEvent, WrittenRoom


def as_stored(txn: Transaction, room: Room) -> WrittenRoom:
    """What is stored of a room, as judged in memory, with the orderings that it got in the database."""
    assert room.room_id is not None
    rows = events_by_id(txn, [each.event.event_id for each in room])
    events = []
    for judged in room:
        row = rows.get(judged.event.event_id)
        if row is None:
            continue
        before = {} if judged.state_before is None else judged.state_before
        after = {} if judged.state_after is None else judged.state_after
        states = [
            {key: room[each].event for key, each in state.items()} for state in (before, after)
        ]
        audience = ordering = None
        if row.stream_id is not None and row.topological is not None:
            ordering = EventOrdering(row.topological, row.stream_id)
            if judged.accepted:
                soft_failed = judged.soft_failure is not None
                audience = audience_of(judged.event, states[0], soft_failed=soft_failed)
        assert row.audience is not None
        events.append(
            WrittenEvent(
                row.event_no,
                judged.event,
                states[0],
                states[1],
                ordering,
                audience,
                row.flags,
                row.group_before,
                row.group_after,
                row.audience,
                row.reach,
                redacted_by=row.redacted_by,
            )
        )
    return WrittenRoom(room.room_id, events=events)
