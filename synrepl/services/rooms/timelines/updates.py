"""Values that tell a client about rooms: what ``/sync`` has below ``rooms``, and pages of history.

Events are encoded already: ``orjson.Fragment(event.json)`` puts one into an answer without decoding it.

Source: https://spec.matrix.org/v1.16/client-server-api/#get_matrixclientv3sync
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orjson import Fragment

from synrepl.core.errors import InputError, Refused, StorageError
from synrepl.core.jsons import encode
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.timelines.room_token import RoomToken


class NotInRoom(Refused):
    """user {user} is not in room {room_id}, and was not in it; only rooms whose history is readable for everybody can be read from outside"""


class EventNotVisible(InputError):
    """event {event_id} is not in room {room_id}, or user {user} may not see it"""


class DamagedRoom(StorageError):
    """room {room_id} cannot be shown: {reason}; 'synrepl rooms verify' names what else is damaged"""


class HasNoEntry(InputError):
    """the state of room {room_id} has no entry of type {type} with state key {state_key!r}"""


@dataclass(frozen=True, slots=True)
class TimelineReader:
    """Who reads.

    :ivar device_id: events that this device sent carry their transaction ID; None: no event does
    :ivar ignored: users that the user ignores
    """

    user_id: str
    device_id: str | None = None
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event in client format.

    :ivar state_key: None for a message event
    :ivar stream_id: its stream ordering; None for an outlier, which only states have
    :ivar json: its JSON with ``unsigned``; with ``room_id`` only where that is not implied
    """

    event_id: str
    type: str
    sender: str
    state_key: str | None
    stream_id: int | None
    json: bytes


def fragments(events: Sequence[ClientEvent]) -> list[Fragment]:
    """Events for :func:`~.jsons.encode`."""
    return [Fragment(each.json) for each in events]


@dataclass(frozen=True, slots=True)
class RoomTimeline:
    """The newest events of a room, in stream order.

    :ivar limited: whether there are more since the last time, or, without one, at all
    :ivar prev_batch: where the history before it begins, for ``/messages``
    """

    events: Sequence[ClientEvent]
    limited: bool
    prev_batch: RoomToken

    def to_json(self) -> dict[str, Any]:
        """As ``/sync`` has it."""
        return {
            "events": fragments(self.events),
            "limited": self.limited,
            "prev_batch": str(self.prev_batch),
        }


@dataclass(frozen=True, slots=True)
class RoomSummary:
    """What a client shows of a room without loading its members.

    :ivar heroes: at most five other members, by stream order of their memberships; None where the room has a name
    """

    heroes: Sequence[str] | None
    joined: int
    invited: int


@dataclass(frozen=True)
class JoinedRoom:
    """A room that the user is in.

    :ivar state: the state at the start of the timeline, or what changed of it; with ``use_state_after``, the
        state at its end (MSC4222)
    :ivar summary: None if it did not change
    :ivar is_new: whether the user was not in the room at the last time; the state is whole then
    :ivar is_shared: whether the answers to many users have it, so that its JSON is kept
    """

    timeline: RoomTimeline
    state: Sequence[ClientEvent]
    summary: RoomSummary | None = None
    is_new: bool = False
    is_shared: bool = field(default=False, compare=False)

    def to_json(self) -> tuple[object, object]:
        """Timeline and state, as ``/sync`` has them, for :func:`~.jsons.encode`."""
        return self._shared_json if self.is_shared else self._made_json()

    @cached_property
    def _shared_json(self) -> tuple[Fragment, Fragment]:
        return _encoded(*self._made_json())

    def _made_json(self) -> tuple[object, object]:
        return self.timeline.to_json(), {"events": fragments(self.state)}

    def encoded(self) -> EncodedRoom:
        """The room as JSON, which takes a part of the memory."""
        timeline, state = self._shared_json if self.is_shared else _encoded(*self._made_json())
        return EncodedRoom(timeline, state, self.summary)


@dataclass(frozen=True, slots=True)
class EncodedRoom:
    """A room that the user is in, as JSON.

    :ivar timeline: as ``/sync`` has it
    :ivar state: likewise
    :ivar summary: None if it did not change
    """

    timeline: Fragment
    state: Fragment
    summary: RoomSummary | None = None

    def to_json(self) -> tuple[object, object]:
        """Timeline and state, for :func:`~.jsons.encode`."""
        return self.timeline, self.state


def _encoded(timeline: object, state: object) -> tuple[Fragment, Fragment]:
    return Fragment(encode(timeline)), Fragment(encode(state))


@dataclass(frozen=True, slots=True)
class InvitedRoom:
    """A room that the user is invited to, or has knocked on.

    :ivar state: stripped state events, as JSON
    """

    state: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class LeftRoom:
    """A room that the user left or was removed from; the timeline ends with that."""

    timeline: RoomTimeline
    state: Sequence[ClientEvent]


@dataclass(frozen=True, slots=True)
class RoomsUpdate:
    """Rooms by ID.

    :ivar joined: the most recently active first
    :ivar damaged: rooms that could not be read, and why; nothing else is said about them
    :ivar upto: as of which vector; None: as of the one that was asked for
    """

    joined: Mapping[str, JoinedRoom] = field(default_factory=dict)
    invited: Mapping[str, InvitedRoom] = field(default_factory=dict)
    knocked: Mapping[str, InvitedRoom] = field(default_factory=dict)
    left: Mapping[str, LeftRoom] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    upto: PositionVector | None = None

    def merged(self, other: RoomsUpdate) -> RoomsUpdate:
        """What both say, about different rooms as of the same vector."""
        return RoomsUpdate(
            {**self.joined, **other.joined},
            {**self.invited, **other.invited},
            {**self.knocked, **other.knocked},
            {**self.left, **other.left},
            {**self.damaged, **other.damaged},
            self.upto,
        )

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.joined or self.invited or self.knocked or self.left)


@dataclass(frozen=True, slots=True)
class RoomPage:
    """Which of the rooms of a user, of the most recently active ones, are wanted.

    :ivar first: number of rooms to skip
    """

    first: int
    limit: int


@dataclass(frozen=True, slots=True)
class MessagesPage:
    """A page of a room's history.

    :ivar events: in the order of the request
    :ivar state: memberships of senders, with lazy loading
    :ivar end: where the next page begins; None: there is no more
    :ivar gaps: some of the missing events in this part of the history, which other servers in the room may have
    :ivar resumes: where a page begins that has them once they have come, if there is no other next page
    """

    events: Sequence[ClientEvent]
    state: Sequence[ClientEvent]
    start: RoomToken
    end: RoomToken | None
    gaps: Sequence[str]
    resumes: RoomToken | None


@dataclass(frozen=True, slots=True)
class EventContext:
    """An event and those around it.

    :ivar before: the newest first
    :ivar after: the oldest first
    :ivar state: at the last event of them
    :ivar start: from where to page backwards
    :ivar end: from where to page forwards
    """

    event: ClientEvent
    before: Sequence[ClientEvent]
    after: Sequence[ClientEvent]
    state: Sequence[ClientEvent]
    start: RoomToken
    end: RoomToken


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member of a room, as ``/joined_members`` tells of one."""

    user_id: str
    display_name: str | None
    avatar_url: str | None
