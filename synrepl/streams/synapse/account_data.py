"""Users' account data."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.effects import Invalidates, Marks, columns_key, entity
from synrepl.streams.row import Row


class AccountDataRow(Row, frozen=True):
    """Account data of a user has changed.

    :ivar room_id: None for data that belongs to no room
    """

    user_id: str
    room_id: str | None
    data_type: str


ACCOUNT_DATA = Stream(
    "account_data",
    {UNTAGGED: AccountDataRow},
    effects={
        AccountDataRow: (
            Invalidates("get_global_account_data_for_user", columns_key("user_id")),
            Invalidates("get_room_account_data_for_user", columns_key("user_id")),
            Invalidates("get_account_data_for_room", columns_key("user_id", "room_id")),
            Marks("account_data", entity("user_id")),
        )
    },
)
