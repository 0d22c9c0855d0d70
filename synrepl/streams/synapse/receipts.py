"""Read receipts."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Marks, entity
from synrepl.streams.row import Json, Row


class ReceiptRow(Row, frozen=True):
    """A user has read up to an event.

    :ivar data: ``{"ts": milliseconds since the epoch, …}``
    :ivar thread_id: the thread it is about; None for the whole room, and from
        peers that know no threads
    """

    room_id: str
    receipt_type: str
    user_id: str
    event_id: str
    data: Json
    thread_id: str | None = None


_BEFORE_THREADS = ("room_id", "receipt_type", "user_id", "event_id", "data")
_WITH_THREADS = ("room_id", "receipt_type", "user_id", "event_id", "thread_id", "data")

RECEIPTS = Stream(
    "receipts",
    {UNTAGGED: ReceiptRow},
    shapes={
        **{each: {UNTAGGED: _BEFORE_THREADS} for each in Generation.until(Generation.MODERN)},
        Generation.CURRENT: {UNTAGGED: _WITH_THREADS},
    },
    effects={ReceiptRow: (Marks("receipts", entity("room_id")),)},
)
