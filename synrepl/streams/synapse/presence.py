"""Users' presence and status messages.

A real 1.11 sends a burst in any order, so all rows are applied. Of a user's rows,
the one with the largest token counts.
"""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.effects import Marks, entity
from synrepl.streams.row import BigInt, Row


class PresenceRow(Row, frozen=True):
    """A user's presence has changed. Times are milliseconds since the epoch, 0 for never."""

    user_id: str
    state: str
    last_active_ts: BigInt
    last_federation_update_ts: BigInt
    last_user_sync_ts: BigInt
    status_msg: str | None
    currently_active: bool


PRESENCE = Stream(
    "presence",
    {UNTAGGED: PresenceRow},
    unordered=True,
    effects={PresenceRow: (Marks("presence", entity("user_id")),)},
)
