"""Users' account data.

Source of the columns: recordings of 1.0, which sends the content, and of 1.11 and later,
which do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Invalidates, Marks, columns_key, entity
from synrepl.streams.row import Row


class AccountDataRow(Row, frozen=True):
    """Account data of a user has changed.

    :ivar room_id: None for data that belongs to no room
    :ivar content: the data, a text that holds JSON; from peers up to 1.8 only, else None
    """

    user_id: str
    room_id: str | None
    data_type: str
    content: str | None = None


#: The type of account data that lists the users whom a user ignores.
IGNORED_USER_LIST = "m.ignored_user_list"


#: The types of account data that say which rooms are direct chats, and how a room is tagged.
DIRECT_ROOMS, ROOM_TAGS = "m.direct", "m.tag"


def _ignored_users_key(row: AccountDataRow) -> Iterable[tuple[str]]:
    is_list = row.data_type == IGNORED_USER_LIST and row.room_id is None
    return ((row.user_id,),) if is_list else ()


def _room_labels_key(row: AccountDataRow) -> Iterable[tuple[str]]:
    is_label = row.data_type == (DIRECT_ROOMS if row.room_id is None else ROOM_TAGS)
    return ((row.user_id,),) if is_label else ()


ACCOUNT_DATA = Stream(
    "account_data",
    {UNTAGGED: AccountDataRow},
    shapes={
        generation: {UNTAGGED: AccountDataRow.__struct_fields__[:3]}
        for generation in Generation.since(Generation.LEGACY)
    },
    effects={
        AccountDataRow: (
            Invalidates("get_global_account_data_for_user", columns_key("user_id")),
            Invalidates("get_room_account_data_for_user", columns_key("user_id")),
            Invalidates("get_account_data_for_room", columns_key("user_id", "room_id")),
            Invalidates("ignored_users", _ignored_users_key),
            Invalidates("room_labels", _room_labels_key),
            Marks("account_data", entity("user_id")),
        )
    },
)
