"""Events that this server sends to others, in the order of their stream."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.event_access import read_events
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.visibility.audience import BAN, LEAVE, SETS_SHIFT

_OUTGOING = int(EventFlags.OUTGOING)
_PARTIAL = int(EventFlags.PARTIAL | EventFlags.ABANDONED)
_UNSENT = int(EventFlags.OUTLIER | EventFlags.REJECTED | EventFlags.SOFT_FAILED)

#: Which events are sent; the first part is the condition of an index.
IS_SENT = f"(e.flags & {_OUTGOING}) <> 0 AND (e.flags & {_UNSENT}) = 0"

#: Columns of a :class:`ToSend`; the event is ``e``, its type ``t``.
TO_SEND = (
    "e.stream_id, e.room_no, e.group_before, e.flags, e.sender,"
    f" CASE WHEN t.type = 'm.room.member' AND (e.audience >> {SETS_SHIFT}) & 7 IN ({LEAVE}, {BAN})"
    " THEN (SELECT k.state_key FROM synrepl._room_keys k"
    "  WHERE k.room_no = e.room_no AND k.slot = e.slot) END"
)


class ToSend(NamedTuple):
    """An event to send.

    :ivar group_before: the state before it
    :ivar removed: the user whom it removes from the room, or whose invite or knock it ends
    """

    stream_id: int
    room_no: int
    group_before: int
    flags: int
    sender: str
    removed: str | None

    @property
    def is_partial(self) -> bool:
        """Whether the state before it is partial, although the room may be abandoned since."""
        return bool(self.flags & _PARTIAL)


def events_to_send(txn: Transaction, after: int, upto: int, limit: int) -> Sequence[ToSend]:
    """Events to send with a stream ID above ``after`` and not above ``upto``, the first ``limit`` of them."""
    txn.execute(
        f"SELECT {TO_SEND} FROM synrepl._room_events e JOIN synrepl._event_types t USING (type_no)"
        f" WHERE e.stream_id > %s AND e.stream_id <= %s AND {IS_SENT} ORDER BY e.stream_id LIMIT %s",
        (after, upto, limit),
    )
    return [ToSend._make(row) for row in txn.fetchall()]


def outgoing_json(txn: Transaction, stream_ids: Collection[int]) -> Mapping[int, tuple[str, bytes]]:
    """The ID and the JSON of events by stream ID, redacted ones in their redacted form.

    Those that are not here any more are left out.
    """
    txn.execute(
        "SELECT event_id, stream_id FROM synrepl._room_events WHERE stream_id = ANY (%s::bigint[])",
        (array_text(stream_ids),),
    )
    names: dict[str, int] = dict(txn.fetchall())
    found = read_events(txn, list(names))
    return {names[event_id]: (event_id, copy.json) for event_id, copy in found.items()}
