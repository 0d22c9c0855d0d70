"""Tags that users put on rooms."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Marks, entity
from synrepl.streams.row import Json, Row


class TagAccountDataRow(Row, frozen=True):
    """A user's tags on a room have changed.

    :ivar data: on the wire a text that holds JSON
    """

    user_id: str
    room_id: str
    data: Json


TAG_ACCOUNT_DATA = Stream(
    "tag_account_data",
    {UNTAGGED: TagAccountDataRow},
    generations=Generation.until(Generation.MODERN),
    numbered_with="account_data",
    effects={TagAccountDataRow: (Marks("account_data", entity("user_id")),)},
)
