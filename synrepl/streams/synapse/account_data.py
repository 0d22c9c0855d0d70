"""Users' account data."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Row


class AccountDataRow(Row, frozen=True):
    """Account data of a user has changed.

    :ivar room_id: None for data that belongs to no room
    """

    user_id: str
    room_id: str | None
    data_type: str


ACCOUNT_DATA = Stream("account_data", {UNTAGGED: AccountDataRow})
