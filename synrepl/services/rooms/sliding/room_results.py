"""What an answer of sliding sync says of rooms, whatever the form in which it is sent.

Source: MSC4186, ``RoomResult``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synrepl.rooms import StateKey
from synrepl.services.rooms.sliding.connection_state import RoomRecord
from synrepl.services.rooms.sliding.sliding_plan import SlidingPlan
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.updates import ClientEvent


class RoomHero(NamedTuple):
    """A member that a room without a name is named by."""

    user_id: str
    display_name: str | None
    avatar_url: str | None


@dataclass(frozen=True, slots=True)
class RoomResult:
    """What is told of one room; None: it has not changed.

    :ivar is_initial: whether it replaces all that the client has of the room
    :ivar is_expanded: whether the timeline has events from before the last time, because more are wanted than before
    :ivar lists: names of the lists that have the room in a window
    :ivar names: ``name`` and ``avatar`` as far as they changed, with None for those that were removed
    :ivar prev_batch: where the history before the timeline begins; None without a timeline
    :ivar num_live: number of events at the end of the timeline that the client's position does not cover
    :ivar removed: the keys that were removed from the state
    :ivar stripped: the stripped state of a room that the user is invited to, or has knocked on
    """

    membership: str
    is_initial: bool
    is_expanded: bool = False
    lists: Sequence[str] = ()
    names: Mapping[str, str | None] = field(default_factory=dict)
    heroes: Sequence[RoomHero] | None = None
    joined: int | None = None
    invited: int | None = None
    is_direct: bool | None = None
    bump_stamp: int | None = None
    timeline: Sequence[ClientEvent] = ()
    is_limited: bool = False
    prev_batch: RoomToken | None = None
    num_live: int = 0
    state: Sequence[ClientEvent] = ()
    removed: Sequence[StateKey] = ()
    stripped: Sequence[bytes] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing new."""
        return not (
            self.is_initial
            or self.names
            or self.timeline
            or self.is_limited
            or self.state
            or self.removed
            or self.is_direct is not None
            or self.joined is not None
            or self.heroes is not None
        )


class SlidingRooms(NamedTuple):
    """The rooms of an answer.

    :ivar results: by number of the room
    :ivar records: what the client was told of each room that was read, with this answer
    :ivar damaged: rooms that could not be read, by ID, and why
    :ivar members: numbers of the membership events that were told for lazy loading
    """

    results: Mapping[int, RoomResult]
    records: Mapping[int, RoomRecord]
    damaged: Mapping[str, str]
    members: Collection[int]

    def by_id(self, plan: SlidingPlan) -> dict[str, RoomResult]:
        """The results by ID of the room."""
        return {plan.matched[no].room.room_id: each for no, each in self.results.items()}


NO_ROOMS = SlidingRooms({}, {}, {}, ())
