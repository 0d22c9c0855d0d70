"""What is read of rooms by the tasks that judge them: sizes of rooms, their orders, and parts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

#: Topological and stream ordering.
Place = tuple[int, int]


class JudgedRoom(NamedTuple):
    """A room, for planning.

    :ivar key: what the room goes by in statements
    :ivar version: None if the database states none
    :ivar events: number of events that have a state
    :ivar outliers: number of outliers
    """

    key: str
    room_id: str
    version: str | None
    events: int
    outliers: int


class RoomPart(NamedTuple):
    """A part of a room, or its outliers.

    :ivar number: among the parts of one run of a job
    :ivar first: the place of its first event; None for the first part of a room
    :ivar until: the place of the first event that is not in it; None for the last part of a room
    :ivar events: number of its events
    :ivar is_outliers: it is the outliers of a room, which have no places
    """

    number: int
    room: JudgedRoom
    first: Place | None
    until: Place | None
    events: int
    is_outliers: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its kind in the room."""
        return self.first is None and self.until is None


class PartSource(Protocol):
    """Reads rooms at one snapshot of a database. It is pickled for the tasks."""

    def rooms(self) -> list[JudgedRoom]:
        """The rooms that have events, by ID."""

    def order(self, room: JudgedRoom) -> pa.Table:
        """The order of a room (:data:`.tables.ROOM_ORDER`)."""

    def parts(
        self, parts: Sequence[RoomPart], *, verified: bool
    ) -> Iterator[tuple[RoomPart, pa.Table]]:
        """The events of parts; a part without events is left out.

        A part comes in one table. Outliers, which do not depend on one another's states, come in several.

        :param verified: with all columns of :data:`.tables.VERIFIED_EVENTS`, else those of
            :data:`.tables.JUDGED_EVENTS`
        """
