"""The result of judging an event in a room, and the errors when it cannot be judged."""

from __future__ import annotations

from typing import Generic

import msgspec

from synrepl.core.errors import InputError
from synrepl.rooms.checks import Check
from synrepl.rooms.event import Event
from synrepl.rooms.ordering import EventOrdering
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.view import S


class OtherRoom(InputError):
    """event {event_id} is of room {room_id}, or of another room version, and not of {expected}"""


class UnknownEvents(InputError):
    """{missing} of room {room_id} must be known before event {event_id} can be judged"""


class NotJudged(InputError):
    """event {event_id} has not been judged in room {room_id}"""


class NoState(InputError):
    """the state of the room at event {event_id} is not known: it is here only because others cite it"""


class Judged(msgspec.Struct, Generic[S], frozen=True, eq=False, gc=False):
    """The verdict on an event, and the states before and after it.

    The states are handles of the view in which it was judged; in a :class:`~synrepl.rooms.room.Room`
    they are whole maps.

    :ivar state_before: None for an outlier
    :ivar state_after: equal to ``state_before``, plus the event when it is an accepted state event
    :ivar refusal: why it is rejected; None when it is accepted
    :ivar failed: the check by which it was rejected or soft-failed
    :ivar soft_failure: why it is soft-failed: accepted, but not sent to clients or built upon
    :ivar partial: whether its state is partial (faster joins)
    :ivar ordering: its place in the topological and the stream ordering
    """

    event: Event
    state_before: S | None
    state_after: S | None
    refusal: Refusal | None
    failed: Check | None
    soft_failure: Refusal | None
    partial: bool
    ordering: EventOrdering

    @property
    def accepted(self) -> bool:
        """Whether it was not rejected; it may be soft-failed."""
        return self.refusal is None

    @property
    def passed_all_checks(self) -> bool:
        """Whether it was accepted and not soft-failed."""
        return self.refusal is None and self.soft_failure is None

    @property
    def topological(self) -> int:
        """Its topological ordering; see :class:`~synrepl.rooms.ordering.EventOrdering`."""
        return self.ordering.topological

    @property
    def prev_event_ids(self) -> tuple[str, ...]:
        """IDs of its prev events."""
        return self.event.prev_event_ids
