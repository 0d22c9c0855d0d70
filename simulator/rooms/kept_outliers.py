"""The events that a purge keeps before its point, found out from the room in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from synrepl.rooms import Room, auth_dependencies
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_groups import read_states
from synrepl.storage.rooms.tables.numbers import require_room


def staying_events(room: Room, full: Collection[str]) -> set[str]:
    """The forward extremities, and the events on top of them that did not pass all checks.

    :param full: the events that are stored with their states
    """
    found = set(room.forward_extremities)
    unpassed = [each for each in full if not room[each].passed_all_checks]
    ahead = True
    while ahead:
        more = [
            each
            for each in unpassed
            if each not in found and not found.isdisjoint(room[each].event.prev_event_ids)
        ]
        found.update(more)
        ahead = bool(more)
    return found


def kept_outliers(
    txn: Transaction, room: Room, full: Collection[str], redacted_by: Mapping[str, str]
) -> set[str]:
    """The events that a purge keeps because others cite them or have them in their states."""
    found: set[str] = set()
    ahead: list[str] = list(room.current_state().values())
    ahead += _in_line_heads(txn, room)
    for event_id in full:
        judged = room[event_id]
        assert judged.state_before is not None
        assert judged.state_after is not None
        ahead += [*judged.state_before.values(), *judged.state_after.values()]
    ahead += [each for event_id in full for each in _cited(room, event_id, redacted_by)]
    while ahead:
        event_id = ahead.pop()
        if event_id not in found:
            found.add(event_id)
            ahead += _cited(room, event_id, redacted_by)
    return found - set(full)


def _in_line_heads(txn: Transaction, room: Room) -> set[str]:
    """Lines are extended at their heads, so these groups are kept whether events have them or not."""
    row = require_room(txn, room.room_id or "")
    txn.execute("SELECT head FROM synrepl._state_lines WHERE room_no = %s", (row.room_no,))
    heads = [int(head) for (head,) in txn.fetchall()]
    return {each for state in read_states(txn, row, heads).values() for each in state.values()}


def _cited(room: Room, event_id: str, redacted_by: Mapping[str, str]) -> Iterable[str]:
    yield from auth_dependencies(room[event_id].event)
    if event_id in redacted_by:
        yield redacted_by[event_id]
