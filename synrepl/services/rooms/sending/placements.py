"""Which process persists a room, and the room's version: read from the database, and remembered for a moment."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from synrepl.core.clock import Clock
from synrepl.services.rooms.assignment import RoomAssignment
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.storage.rooms.tables.numbers import UnknownRoom

#: Seconds for which a placement is remembered. An older one is not wrong, only slow: any process may persist.
REMEMBER_S = 2.0

#: Maximum number of rooms whose placement is remembered.
MAX_PLACEMENTS = 50_000


class RoomPlacement(NamedTuple):
    """Which process persists a room.

    :ivar version: of the room
    """

    writer: str
    version: str


class PlacementCache:
    """Remembers the placements of rooms that are in use."""

    def __init__(self, clock: Clock, writers: RoomWriters) -> None:
        self._clock = clock
        self._writers = writers
        self._placements: OrderedDict[str, tuple[float, RoomPlacement]] = OrderedDict()

    async def of(self, room_id: str, *, fresh: bool = False) -> RoomPlacement:
        """The placement of a room.

        :param fresh: read it, although it may be remembered
        :raises UnknownRoom: the room is not stored
        """
        now = self._clock.seconds()
        found = self._placements.get(room_id)
        if found is not None and not fresh and now < found[0]:
            return found[1]
        self._placements.pop(room_id, None)
        placed = await self._writers.place([] if "\0" in room_id else [room_id])
        if room_id not in placed.versions:
            raise UnknownRoom(room_id=room_id.replace("\0", "\ufffd")[:255])
        placement = RoomPlacement(placed.assignment.writer_of(room_id), placed.versions[room_id])
        self._placements[room_id] = now + REMEMBER_S, placement
        while len(self._placements) > MAX_PLACEMENTS:
            self._placements.popitem(last=False)
        return placement

    async def assignment(self) -> RoomAssignment:
        """The assignment of rooms that are not stored."""
        return (await self._writers.place([])).assignment
