"""What a connection was told of each room: a few bytes a room, whatever the rooms have.

A room whose record names no token is told up to the position of the connection, which the client's token has. So the
state of a connection changes when rooms come into its windows or leave them with news, and not with each event.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import NamedTuple

import msgspec

from synrepl.core.errors import StorageError
from synrepl.services.rooms.sliding.required_state import RequiredState

#: Maximum number of rooms that a connection remembers.
MAX_ROOMS = 20_000

#: Maximum number of positions at which rooms were left behind. Rooms at older ones are forgotten, and told anew.
MAX_BEHIND = 32

#: Maximum size of the wanted states that are remembered, in bytes of JSON. Others are remembered by their digest.
MAX_KNOWN_BYTES = 65_536

#: Depth of a room whose whole visible history was told.
WHOLE = 0xFFFF

_FORM = 1


class CorruptConnection(StorageError):
    """the state of sliding sync connection {connection} cannot be read: {reason}; the client begins anew"""


class ToldOf(IntFlag):
    """What else a client was told of a room.

    :cvar DIRECT: that it is a direct chat
    """

    NOTHING = 0
    DIRECT = 1
    ACCOUNT_DATA = 2
    RECEIPTS = 4
    TYPING = 8


class RoomRecord(NamedTuple):
    """What a connection was told of one room.

    :ivar known: the entries of the state that the client has, as of then; or the digest of what was wanted last
    :ivar depth: the client has at least this number of the newest events of then
    :ivar behind: the token up to which the client was told; None: the position of the connection
    """

    known: RequiredState | bytes
    depth: int
    told: ToldOf = ToldOf.NOTHING
    behind: str | None = None

    def knows(self, wanted: RequiredState) -> bool:
        """Whether the client has every entry that is wanted."""
        if isinstance(self.known, bytes):
            return self.known == wanted.digest
        return self.known.covers(wanted)


class _Packed(msgspec.Struct, array_like=True):
    """A state as it is stored.

    :ivar known: as JSON, or a digest
    :ivar records: place in ``known``, depth, what was told, place in ``behind`` from 1 on
    :ivar room_nos: in order, 4 bytes each
    :ivar places: place in ``records`` of each room, 2 bytes each
    """

    form: int
    has_account_data: bool
    behind: list[str]
    known: list[list[object] | bytes]
    records: list[tuple[int, int, int, int]]
    room_nos: bytes
    places: bytes


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Packed)


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """What a connection was told.

    :ivar rooms: records by number of the room
    :ivar behind: the tokens that records name, the oldest first
    :ivar has_account_data: whether the client was told of all account data that belongs to no room
    """

    rooms: Mapping[int, RoomRecord] = field(default_factory=dict)
    behind: tuple[str, ...] = ()
    has_account_data: bool = False

    def updated(
        self,
        changes: Mapping[int, RoomRecord | None],
        wanted: Container[int] = (),
        *,
        has_account_data: bool = False,
    ) -> ConnectionState:
        """The state with other records.

        :param changes: None: the room is forgotten
        :param wanted: rooms that are forgotten last, if there are too many; fewer than :data:`MAX_ROOMS`
        """
        if has_account_data == self.has_account_data and all(
            self.rooms.get(number) == record for number, record in changes.items()
        ):
            return self
        rooms = {**self.rooms, **changes}
        found = {number: record for number, record in rooms.items() if record is not None}
        used = dict.fromkeys(each.behind for each in found.values() if each.behind is not None)
        behind = [each for each in self.behind if each in used]
        behind += [each for each in used if each not in self.behind]
        lost = set(behind[:-MAX_BEHIND])
        if lost:
            found = {no: each for no, each in found.items() if each.behind not in lost}
        if len(found) > MAX_ROOMS:
            found = {no: each for no, each in found.items() if no in wanted}
        return ConnectionState(found, tuple(behind[-MAX_BEHIND:]), has_account_data)

    def packed(self) -> bytes:
        """The same bytes for the same state."""
        numbers = sorted(self.rooms)
        known: dict[RequiredState | bytes, int] = {}
        records: dict[tuple[int, int, int, int], int] = {}
        behind: dict[str | None, int] = {token: n for n, token in enumerate((None, *self.behind))}
        # Most rooms share few objects, which need not be compared for each.
        places_by_id: dict[int, int] = {}
        places = []
        for number in numbers:
            record = self.rooms[number]
            place = places_by_id.get(id(record))
            if place is None:
                wanted, depth, told, token = record
                row = (known.setdefault(wanted, len(known)), depth, int(told), behind[token])
                place = places_by_id[id(record)] = records.setdefault(row, len(records))
            places.append(place)
        return _ENCODER.encode(
            _Packed(
                _FORM,
                self.has_account_data,
                list(self.behind),
                _packed_known(known),
                list(records),
                struct.pack(f"<{len(numbers)}I", *numbers),
                struct.pack(f"<{len(numbers)}H", *places),
            )
        )

    @classmethod
    def unpacked(cls, packed: bytes, connection: int) -> ConnectionState:
        """Read the output of :meth:`packed`.

        :raises CorruptConnection: it is anything else
        """
        try:
            found = _DECODER.decode(packed)
            if found.form != _FORM:
                raise CorruptConnection(connection=connection, reason=f"form {found.form}")
            count = len(found.room_nos) // 4
            numbers = struct.unpack(f"<{count}I", found.room_nos)
            places = struct.unpack(f"<{count}H", found.places)
            known = [
                each if isinstance(each, bytes) else RequiredState.from_json(each)
                for each in found.known
            ]
            tokens = [None, *found.behind]
            records = [
                RoomRecord(known[state], depth, ToldOf(told), tokens[behind])
                for state, depth, told, behind in found.records
            ]
            rooms = dict(zip(numbers, map(records.__getitem__, places), strict=True))
        except (msgspec.MsgspecError, struct.error, LookupError, TypeError, ValueError) as error:
            raise CorruptConnection(connection=connection, reason=error) from error
        return cls(rooms, tuple(found.behind), found.has_account_data)


def _packed_known(known: Iterable[RequiredState | bytes]) -> list[list[object] | bytes]:
    """Wanted states as they are stored, each as far as there is room."""
    found: list[list[object] | bytes] = []
    left = MAX_KNOWN_BYTES
    for each in known:
        if isinstance(each, bytes):
            found.append(each)
            continue
        value = each.to_json()
        size = len(_ENCODER.encode(value))
        if size > left:
            found.append(each.digest)
            continue
        left -= size
        found.append(value)
    return found
