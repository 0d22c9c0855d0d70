"""Visibility verdicts and their reasons."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple


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
