"""The precomputed part of event visibility, and the verdicts.

An audience is computed once, when the event is stored, from the state around it. Each check after that
needs only the membership at the event: of the user, or of the server's users.

Sources: https://spec.matrix.org/v1.16/client-server-api/#room-history-visibility
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from synrepl.rooms.event import Event
from synrepl.rooms.event_types import ALIASES, DUMMY, HISTORY_VISIBILITY, MEMBER
from synrepl.rooms.state import StateEvents


class Sight(StrEnum):
    """How much of an event is visible."""

    FULL = "full"
    REDACTED = "redacted"
    HIDDEN = "hidden"


class VisibilityReason(Enum):
    """The rule that decided: a stable code, whether it shows the event, and a sentence."""

    WORLD_READABLE = "world-readable", True, "everybody may read the room's history at the event"
    JOINED = "joined", True, "{who} was in the room at the event"
    SHARED = "shared", True, "the history is shared with everyone who is or was in the room"
    INVITED = "invited", True, "{who} was invited, and the history is shown from the invitation on"
    INVITATION_ENDED = "invitation-ended", True, "it ends an invitation of {who}"

    SOFT_FAILED = "soft-failed", False, "it failed softly, so no client gets it"
    ALIASES = "aliases", False, "no client gets m.room.aliases"
    DUMMY = "dummy-event", False, "no client gets org.matrix.dummy_event"
    IGNORED = "ignored", False, "{who} ignores its sender"
    PEEKING = "peeking", False, "the history is shared with members, and {who} only looks in"
    NOT_INVITED = "not-invited", False, "the history is for those invited, and {who} was not"
    NOT_JOINED = "not-joined", False, "the history is for those in the room, and {who} was not"

    def __init__(self, code: str, shows: bool, sentence: str) -> None:
        self.code = code
        self.shows = shows
        self.sentence = sentence


class VisibilityVerdict(NamedTuple):
    """The verdict for one user or server.

    :ivar erased: whether the sender's account was erased
    """

    sight: Sight
    reason: VisibilityReason
    erased: bool = False

    def explain(self, who: str) -> str:
        """The full reason as a sentence.

        :param who: the user or server
        """
        explanation = f"{self.sight}: {self.reason.sentence.format(who=who)}"
        if self.sight is Sight.REDACTED and self.reason.shows:
            explanation += "; its sender has erased itself"
        return explanation


JOIN, INVITE, LEAVE = "join", "invite", "leave"

#: Rank of the memberships that let a user see more; every other membership is like ``leave``.
_PERMISSIVE = {JOIN: 2, INVITE: 1}


class HistoryVisibility(IntEnum):
    """Values of ``m.room.history_visibility``, from the most to the least restrictive."""

    JOINED = 0
    INVITED = 1
    SHARED = 2
    WORLD_READABLE = 3


_BY_NAME = {each.name.lower(): each for each in HistoryVisibility}


class EventAudience(msgspec.Struct, frozen=True, gc=False):
    """Who may see one event.

    :ivar visibility: history visibility in the state after the event
    :ivar widest: the less restrictive of the history visibilities before and after the event
    :ivar is_state: whether it is a state event
    :ivar target: the user whose membership it sets, if any
    :ivar target_before: that user's membership before, ``leave`` if there was none
    :ivar hidden_because: why no client may see it; None if some may
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
    """The audience of an accepted event.

    :param before: the state before the event; only single entries are read
    :param soft_failed: whether it is soft-failed, and so hidden from clients
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
    """The value of an ``m.room.history_visibility``; ``shared`` if missing or unknown."""
    value = None if event is None else event.content.get("history_visibility")
    if not isinstance(value, str):
        return HistoryVisibility.SHARED
    return _BY_NAME.get(value, HistoryVisibility.SHARED)


def membership(event: Event | None) -> str:
    """The membership of an ``m.room.member``; ``leave`` if missing or not text."""
    value = None if event is None else event.content.get("membership")
    return value if isinstance(value, str) else LEAVE


def membership_after(event: Event, before: StateEvents, user: str) -> str:
    """A user's membership in the state after an event."""
    sets = event.type == MEMBER and event.state_key == user
    return membership(event if sets else before.get((MEMBER, user)))


def more_permissive(one: str, two: str) -> str:
    """The membership that lets a user see more; the first if they are equal."""
    return max(one, two, key=lambda each: _PERMISSIVE.get(each, 0))
