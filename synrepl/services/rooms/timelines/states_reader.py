"""The state of a room for a user."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from synrepl.positions.vector import PositionVector
from synrepl.rooms import StateKey
from synrepl.services.rooms.timelines.client_events import (
    ClientEventMaker,
    EntryOfRoom,
    MadeEvents,
    in_order,
)
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.room_view import UserRoomView
from synrepl.services.rooms.timelines.updates import (
    ClientEvent,
    DamagedRoom,
    HasNoEntry,
    JoinedMember,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.partial_states import require_known
from synrepl.storage.rooms.timelines.room_entries import (
    MEMBER,
    Boundary,
    current_entries,
    ends,
    entries_before,
    state_changes_after,
)
from synrepl.storage.rooms.visibility.covered_sql import EVERYTHING


class _Membership(msgspec.Struct):
    membership: object = None
    displayname: object = None
    avatar_url: object = None


class _WithMembership(msgspec.Struct):
    content: _Membership


class StatesReader:
    """Reads states of one room, in a transaction: the current one, or for a user who left that at the leave.

    Of a partial room, what is not known yet is not answered.
    """

    def __init__(self, txn: Transaction, view: UserRoomView, now_ms: int) -> None:
        self._txn = txn
        self._view = view
        room_ids = {view.room.room_no: view.room.room_id}
        self._maker = ClientEventMaker(txn, view.reader, now_ms, room_ids=room_ids)

    def state(self) -> list[ClientEvent]:
        """The whole state.

        :raises StateNotKnownYet: the room is partial
        :raises DamagedRoom: an event of it is damaged
        """
        self._require(None, "the state")
        return self._events(self._entries(self._view.upto).values())

    def entry(self, key: StateKey) -> ClientEvent:
        """One entry.

        :raises StateNotKnownYet: :raises HasNoEntry: :raises DamagedRoom:
        """
        self._require([key], f"the membership of {key[1]}")
        number = self._entries(self._view.upto).get(key)
        if number is None:
            room_id = self._view.room.room_id
            raise HasNoEntry(room_id=room_id, type=key[0], state_key=key[1])
        return self._events([number])[0]

    def members(self, at: RoomToken | PositionVector | None) -> list[ClientEvent]:
        """The membership events in the state at a position.

        :raises StateNotKnownYet: :raises DamagedRoom:
        """
        self._require(None, "the members")
        upto = self._view.upto
        if isinstance(at, RoomToken):
            upto = at.ceiling
        elif at is not None:
            upto = at
        if not self._view.is_joined and not self._view.upto.covers(upto):
            upto = self._view.upto
        return self._members(upto)

    def joined_members(self) -> list[JoinedMember]:
        """The users in the room.

        :raises StateNotKnownYet: :raises DamagedRoom:
        """
        found = []
        for each in with_membership(self.members(None), "join"):
            content = msgspec.json.decode(each.json, type=_WithMembership).content
            name, avatar = _text(content.displayname), _text(content.avatar_url)
            found.append(JoinedMember(each.state_key or "", name, avatar))
        return found

    def _require(self, keys: Collection[StateKey] | None, what: str) -> None:
        server = self._view.reader.user_id.partition(":")[2]
        require_known(self._txn, self._view.room.room_no, keys, server, what)

    def _members(self, upto: PositionVector) -> list[ClientEvent]:
        """The membership events in the state of the part of the room that a vector covers."""
        if self._boundary(upto) is not None:
            return self._events(self._entries(upto, only_members=True).values())
        room = self._view.room
        made = self._maker.current_members(room.room_no, room.version)
        return list(self._whole(made).values())

    def _entries(
        self, upto: PositionVector, *, only_members: bool = False
    ) -> Mapping[StateKey, int]:
        """The state of the part of the room that a vector covers, or the memberships in it."""
        room = self._view.room
        entries = current_entries(self._txn, [room.room_no], None, only_members=only_members)
        found = {each.key: each.event_no for each in entries[room.room_no]}
        boundary = self._boundary(upto)
        if boundary is None:
            return found
        after = (room.room_no, room.room_id, boundary.stream_id - 1)
        changed = state_changes_after(self._txn, [after])[room.room_no]
        keys = {key for _, key, _ in changed.changes}
        member = self._view.member
        if changed.is_many or (
            member is not None and max(member.state_only, member.purged) >= boundary.stream_id
        ):
            keys |= found.keys()
        wanted = [
            (room.room_no, boundary.group_before, key)
            for key in keys
            if key[0] == MEMBER or not only_members
        ]
        for (_, key), number in entries_before(self._txn, wanted).items():
            if number is None:
                found.pop(key, None)
            else:
                found[key] = number
        return found

    def _boundary(self, upto: PositionVector) -> Boundary | None:
        """Where the part ends that a vector covers; None if that is the whole room."""
        member, room_no = self._view.member, self._view.room.room_no
        if upto is EVERYTHING:
            return None
        if member is not None and member.newest <= upto.linear:
            return None
        return ends(self._txn, [room_no], upto).get(room_no)

    def _events(self, numbers: Collection[int]) -> list[ClientEvent]:
        room = self._view.room
        made = self._maker.make(
            (), [EntryOfRoom(room.room_no, room.version, each) for each in numbers]
        )
        return in_order(self._whole(made), numbers)

    def _whole(self, made: MadeEvents) -> Mapping[int, ClientEvent]:
        """Events, none of which is damaged."""
        room = self._view.room
        if made.damaged:
            raise DamagedRoom(room_id=room.room_id, reason=made.damaged[room.room_no])
        return made.events


def with_membership(
    members: Sequence[ClientEvent], membership: str | None, not_membership: str | None = None
) -> Sequence[ClientEvent]:
    """Those of some membership events that set a membership, and that do not set another one; None: any."""
    if membership is None and not_membership is None:
        return members
    return [
        each
        for each in members
        if (membership is None or _membership(each) == membership)
        and (not_membership is None or _membership(each) != not_membership)
    ]


def _membership(event: ClientEvent) -> object:
    return msgspec.json.decode(event.json, type=_WithMembership).content.membership


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
