"""Pushers set and removed."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.effects import Invalidates, columns_key
from synrepl.streams.row import Row


class PushersRow(Row, frozen=True):
    """A pusher was set, or deleted."""

    user_id: str
    app_id: str
    pushkey: str
    deleted: bool


PUSHERS = Stream(
    "pushers",
    {UNTAGGED: PushersRow},
    effects={PushersRow: (Invalidates("get_if_user_has_pusher", columns_key("user_id")),)},
)
