"""Who is typing in which room; kept in memory."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.effects import Marks, entity
from synrepl.streams.row import Row


class TypingRow(Row, frozen=True):
    """All users who are typing in a room now."""

    room_id: str
    user_ids: list[str]


TYPING = Stream(
    "typing",
    {UNTAGGED: TypingRow},
    in_memory=True,
    effects={TypingRow: (Marks("typing", entity("room_id")),)},
)
