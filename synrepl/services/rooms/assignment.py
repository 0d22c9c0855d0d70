"""Which instance persists the events of which room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from synrepl.core.errors import Refused


class OtherRoomWriter(Refused):
    """room {room_id} is assigned to {assigned_to!r}, and this is {instance!r}: send its events there; nothing was written"""


class RoomAssignment:
    """Assigns each room to one of some instances.

    Rendezvous hashing (Thaler and Ravishankar, 1998): a room belongs to the instance whose hash with the room's ID
    is the highest. So all processes with the same list agree, whatever its order, and when an instance is
    added or removed, only the rooms of that instance move.

    :param writers: the instances; at least one
    :param moved: rooms that were moved, with the instance of each; it counts as long as it is in the list
    """

    def __init__(
        self, writers: Sequence[str], moved: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.writers = tuple(writers)
        self._moved = moved

    def writer_of(self, room_id: str) -> str:
        """The instance that persists the events of a room."""
        moved_to = self._moved.get(room_id)
        if moved_to in self.writers:
            return moved_to
        return by_weight(self.writers, room_id)[0]

    def check(self, room_id: str, instance: str) -> None:
        """Check that a room is assigned to an instance.

        :raises OtherRoomWriter: it is assigned to another one
        """
        writer = self.writer_of(room_id)
        if writer != instance:
            raise OtherRoomWriter(room_id=room_id, assigned_to=writer, instance=instance)


def by_weight(writers: Sequence[str], key: str) -> list[str]:
    """Instances in the order in which a key belongs to them; all processes agree on it."""
    return sorted(writers, key=lambda writer: (_weight(writer, key), writer), reverse=True)


def _weight(writer: str, key: str) -> bytes:
    # A name of an instance has no NUL, so no two pairs have the same text.
    text = f"{writer}\0{key}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()
