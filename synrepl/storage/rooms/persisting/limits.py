"""Limits that keep one room from taking up a process, and the errors of what exceeds them.

Each event is judged by a resolution of the states at what it follows, and each batch ends with one of the states at
all forward extremities. Its cost goes with the number of these and of the events in conflict. Both are under the
control of other servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.rooms import (
    Event,
    ForwardExtremities,
    OtherRoom,
    ReferringEvent,
    UnknownEvents,
    WaitingEvents,
    superseded_by,
)
from synrepl.storage.rooms.tables.incoming import NotStorable
from synrepl.storage.rooms.tables.waiting import MAX_STORED_WAITING

#: Forward extremities of a room. Netsplits of bridges have left 1,600.
MAX_EXTREMITIES = 2_000

#: Events in a resolution: 5 to 10 s of CPU.
MAX_RESOLVED = 50_000


class TooManyExtremities(Refused):
    """event {event_id} is not taken: room {room_id} has {count} forward extremities, {limit} is the most that it may have, and the event follows none of them; have an event sent that follows them, then send it again"""


class ResolutionTooLarge(Refused):
    """the states of room {room_id} cannot be resolved: {count} events are in conflict, and {limit} is the most that a resolution may have; raise 'max_resolved' of 'rooms' to take what was refused"""


class RoomNotPartial(Refused):
    """event {event_id} comes with partial state, and room {room_id} has its full state; join the room partially first"""


#: Why one event is not taken, while others of its batch are.
EVENT_REFUSALS = (
    NotStorable,
    OtherRoom,
    UnknownEvents,
    TooManyExtremities,
    ResolutionTooLarge,
    RoomNotPartial,
)


class RoomLimits(NamedTuple):
    """What a room may have.

    :ivar max_waiting: events that wait for others; beyond it, the one that has waited longest is dropped
    :ivar max_extremities: forward extremities beyond which a new event is refused unless it follows one
    :ivar max_resolved: events in one resolution of states
    """

    max_waiting: int = MAX_STORED_WAITING
    max_extremities: int = MAX_EXTREMITIES
    max_resolved: int = MAX_RESOLVED


DEFAULT_LIMITS = RoomLimits()


def check_extremities(
    event: Event,
    ends: ForwardExtremities,
    find: Callable[[str], ReferringEvent | None],
    waiting: WaitingEvents,
    limit: int,
) -> None:
    """Refuse a live event that would be one forward extremity too many.

    One that follows an extremity takes its place, and one that others were waiting for is followed by these.

    :param find: returns an event of the room; None for any other
    :param waiting: events that wait for others
    :raises TooManyExtremities:
    """
    count, event_id = len(ends.event_ids), event.event_id
    if count < limit or event_id in ends.missing_prev_events or event_id in waiting.missing:
        return
    if ends.event_ids.isdisjoint(superseded_by(event.prev_event_ids, find)):
        raise TooManyExtremities(event_id=event_id, room_id=event.room_id, count=count, limit=limit)
