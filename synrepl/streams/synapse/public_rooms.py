"""Changes to the public room directory."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row


class PublicRoomsRow(Row, frozen=True):
    """A room was put into the directory or taken out of it."""

    room_id: str
    visibility: bool
    appservice_id: str | None
    network_id: str | None


PUBLIC_ROOMS = Stream(
    "public_rooms",
    {UNTAGGED: PublicRoomsRow},
    generations=Generation.until(Generation.TRANSITIONAL),
)
