"""Who may see an event, as far as that can be told before anybody asks.

An audience is found once, when the event is stored, from the state around it. Each question after
that needs only what the asker was at the event: a user's membership, or that of a server's users.

Sources: https://spec.matrix.org/v1.16/client-server-api/#room-history-visibility
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from synrepl.rooms.event import Event
from synrepl.rooms.event_types import ALIASES, DUMMY, HISTORY_VISIBILITY, MEMBER
from synrepl.rooms.state import StateEvents
from synrepl.rooms.visibility.verdict import VisibilityReason

JOIN, INVITE, LEAVE = "join", "invite", "leave"

#: What lets somebody see more than the rest; every other membership is like none.
_PERMISSIVE = {JOIN: 2, INVITE: 1}


class HistoryVisibility(IntEnum):
    """What a room's ``m.room.history_visibility`` says; the greater, the more may see."""

    JOINED = 0
    INVITED = 1
    SHARED = 2
    WORLD_READABLE = 3


_BY_NAME = {each.name.lower(): each for each in HistoryVisibility}


class EventAudience(msgspec.Struct, frozen=True, gc=False):
    """Who may see one event.

    :ivar visibility: of the room's history, in the state after the event
    :ivar widest: the most permissive of before and after, where the event changes it; else the same
    :ivar is_state: whether it is a state event
    :ivar target: the user whose membership it sets, if it sets one
    :ivar target_before: what that user was before, ``leave`` if nothing was known of it
    :ivar hidden_because: why no client may see it, whoever asks; None if some may
    """

    event_id: str
    sender: str
    visibility: HistoryVisibility
    widest: HistoryVisibility
    is_state: bool
    target: str | None
    target_before: str
    hidden_because: VisibilityReason | None


def audience_of(event: Event, before: StateEvents, *, soft_failed: bool = False) -> EventAudience:
    """The audience of an event that was accepted.

    :param before: the state before the event; only asked for single entries
    :param soft_failed: it is in the graph, and kept from clients
    """
    old = history_visibility(before.get((HISTORY_VISIBILITY, "")))
    visibility = widest = old
    target, target_before = None, LEAVE
    if event.type == HISTORY_VISIBILITY and event.state_key == "":
        visibility = history_visibility(event)
        widest = max(old, visibility)
    elif event.type == MEMBER and event.state_key is not None:
        target = event.state_key
        target_before = membership(before.get((MEMBER, target)))
    hidden_because = None
    if soft_failed:
        hidden_because = VisibilityReason.SOFT_FAILED
    elif event.type == ALIASES:
        hidden_because = VisibilityReason.ALIASES
    elif event.type == DUMMY:
        hidden_because = VisibilityReason.DUMMY
    return EventAudience(
        event.event_id,
        event.sender,
        visibility,
        widest,
        event.state_key is not None,
        target,
        target_before,
        hidden_because,
    )


def history_visibility(event: Event | None) -> HistoryVisibility:
    """What an ``m.room.history_visibility`` says; ``shared`` if there is none, or nothing known."""
    value = None if event is None else event.content.get("history_visibility")
    if not isinstance(value, str):
        return HistoryVisibility.SHARED
    return _BY_NAME.get(value, HistoryVisibility.SHARED)


def membership(event: Event | None) -> str:
    """What an ``m.room.member`` says; ``leave`` if there is none, or no text."""
    value = None if event is None else event.content.get("membership")
    return value if isinstance(value, str) else LEAVE


def membership_after(event: Event, before: StateEvents, user: str) -> str:
    """A user's membership in the state after an event."""
    sets = event.type == MEMBER and event.state_key == user
    return membership(event if sets else before.get((MEMBER, user)))


def more_permissive(one: str, two: str) -> str:
    """Of two memberships the one that lets its user see more; the first if neither does."""
    return max(one, two, key=lambda each: _PERMISSIVE.get(each, 0))
