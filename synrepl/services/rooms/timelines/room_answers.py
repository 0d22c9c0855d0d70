"""What an answer says of a room that its user was in all the time, from what was found of it.

Shared by :mod:`.update_reader`, which reads for one user, and :mod:`.room_tails`, which share what they read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering, StateKey
from synrepl.services.rooms.timelines.client_events import in_order
from synrepl.services.rooms.timelines.client_filter import RoomEventFilter
from synrepl.services.rooms.timelines.room_token import RoomToken, lowered
from synrepl.services.rooms.timelines.updates import ClientEvent, RoomSummary, RoomTimeline
from synrepl.storage.rooms.timelines.room_entries import MEMBER
from synrepl.storage.rooms.timelines.room_summaries import StoredSummary
from synrepl.storage.rooms.timelines.shown_events import ShownPart


def room_timeline(
    part: ShownPart,
    events: Mapping[int, ClientEvent],
    upto: PositionVector,
    last: Token,
    topological: int,
) -> RoomTimeline:
    """The timeline of a room, with where the history before it begins.

    :param events: those of the part, by number
    :param last: stream ordering of the last event that might have been shown
    :param topological: the highest topological ordering in the room
    """
    stream_id = part.events[0].ordering.stream - 1 if part.events else last
    return RoomTimeline(
        in_order(events, [each.event_no for each in part.events]),
        part.is_limited,
        RoomToken(lowered(upto, stream_id), EventOrdering(topological, stream_id)),
    )


def changed_entries(
    part: ShownPart,
    changes: Sequence[tuple[Token, StateKey, int | None]],
    members: Collection[str] | None,
    *,
    state_after: bool,
) -> dict[StateKey, int]:
    """Numbers of the state events that a client has to learn of besides the timeline.

    :param changes: of the room's state, in stream order; the number is None if an entry was removed
    :param members: users whose memberships are told after a gap; None: those of all users
    :param state_after: whether the state at the end of the timeline is meant, not that at its start
    """
    shown = {each.event_no for each in part.events}
    first = part.events[0].ordering.stream if part.events else None
    before: dict[StateKey, int | None] = {}
    final: dict[StateKey, int | None] = {}
    for stream_id, key, event_no in changes:
        is_unwanted = members is not None and key[0] == MEMBER and key[1] not in members
        if is_unwanted and part.is_limited:
            continue
        final[key] = event_no
        if first is not None and stream_id < first:
            before[key] = event_no
    found: dict[StateKey, int] = {}
    if state_after:
        return {key: event_no for key, event_no in final.items() if event_no is not None}
    for key, event_no in before.items():
        if event_no is not None:
            found[key] = event_no
    for key, event_no in final.items():
        if event_no is not None and event_no not in shown:
            found[key] = event_no
    return found


def wanted_entries(
    state: Mapping[StateKey, int], events: Mapping[int, ClientEvent], wanted: RoomEventFilter
) -> list[ClientEvent]:
    """The events of a state that a filter allows."""
    return [
        each for each in in_order(events, state.values()) if wanted.allows(each.type, each.sender)
    ]


def summary_for(user: str, stored: StoredSummary | None) -> RoomSummary | None:
    """The summary of a room for a user."""
    if stored is None:
        return None
    return RoomSummary(stored.heroes(user), stored.joined, stored.invited)
