"""Values that tell a client about everything besides the events of rooms, whatever answer they become part of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.storage.clients.values import AccountData, Presence, Receipt


class DataRooms(NamedTuple):
    """The rooms of a user that are told of; nothing is told of others.

    :ivar joined: rooms that the user is in
    :ivar whole: those of them of which the client knows nothing yet, so that everything is told
    :ivar new_members: users that are new in any of them, whose presence is told
    :ivar left: rooms that the user left, of which account data is told
    """

    joined: Collection[str] = ()
    whole: Collection[str] = ()
    new_members: Collection[str] = ()
    left: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class RoomData:
    """What is told of one room.

    :ivar receipts: in any order; of a user, at most one with the same type and thread
    :ivar typing: all users that type; None if that did not change
    """

    account_data: Sequence[AccountData] = ()
    receipts: Sequence[Receipt] = ()
    typing: Sequence[str] | None = None


#: Nothing is told of a room.
NO_ROOM_DATA = RoomData()


@dataclass(frozen=True, slots=True)
class ClientData:
    """What is told.

    :ivar account_data: what belongs to no room
    :ivar rooms: by room ID, in any order; rooms without anything are left out
    :ivar to_device: messages to the device, as JSON, the oldest first
    :ivar to_device_upto: up to where these are all messages; the next token has to have this position
    :ivar has_acknowledged: whether messages are stored that ``since`` acknowledges
    """

    account_data: Sequence[AccountData] = ()
    rooms: Mapping[str, RoomData] = field(default_factory=dict)
    presence: Sequence[Presence] = ()
    to_device: Sequence[bytes] = ()
    to_device_upto: PositionVector | None = None
    has_acknowledged: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.account_data or self.rooms or self.presence or self.to_device)


#: Nothing is told.
NO_DATA = ClientData()
