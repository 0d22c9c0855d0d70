"""Explanations as data, each with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from synrepl.rooms import Check, Refusal, ResolutionDecision, StateKey, VisibilityVerdict


class StateOrigin(StrEnum):
    """How an entry of a state came about."""

    EVENT = "event"  #: the event set it, and it is the same since
    RESOLUTION = "resolution"  #: branches disagreed about it, and were resolved
    REPORTED = "reported"  #: another server reported the state before an event
    BEGINNING = "beginning"  #: the room had no such entry from its beginning
    FURTHER_BACK = "further back"  #: it is the same for as many events as were walked through


class EntryPlace(NamedTuple):
    """Where an entry of a state is stored.

    :ivar group: number of the state group of the state
    :ivar stored_in: number of the group in its chain whose row has the entry
    :ivar line: number of the state line, and the position on it
    :ivar in_overlay: whether the entry is in the overlay on top of the line
    """

    group: int
    stored_in: int | None
    line: int | None
    position: int | None
    in_overlay: bool


class StateExplanation(NamedTuple):
    """Where an entry of the state at an event comes from.

    :ivar event_id: the entry; None if the state has none for the key
    :ivar decided_at: the event that set the entry, before which it was resolved or reported, or at which the
        walk ended
    :ivar decision: what the resolution did, if it was one
    :ivar walked: number of events that were walked through
    """

    at: str
    before: bool
    key: StateKey
    event_id: str | None
    place: EntryPlace
    origin: StateOrigin
    decided_at: str
    decision: ResolutionDecision | None
    walked: int

    @property
    def sentence(self) -> str:
        """The explanation as a sentence."""
        when = "before" if self.before else "after"
        key = f"({self.key[0]}, {self.key[1]!r})"
        if self.event_id is None:
            text = f"the state {when} {self.at} has no entry for {key}"
        else:
            text = f"in the state {when} {self.at}, {key} is {self.event_id}"
        return f"{text}: {self._why()}"

    def _why(self) -> str:
        at = self.decided_at
        if self.origin is StateOrigin.EVENT:
            return f"{at} set it, and nothing has changed it since"
        if self.origin is StateOrigin.REPORTED:
            return f"another server reported it as part of the state before {at}"
        if self.origin is StateOrigin.BEGINNING:
            return "nothing has ever set it"
        if self.origin is StateOrigin.FURTHER_BACK:
            return f"it has been so since {at} or longer; {self.walked} events were looked at"
        assert self.decision is not None
        return f"branches were joined at {at}, and {self.decision.sentence}"


class CitedEvent(NamedTuple):
    """An auth event of an event.

    :ivar is_rejected: whether it was rejected itself
    :ivar is_current: whether it was the entry of its key in the state before the event
    """

    event_id: str
    type: str
    state_key: str | None
    is_rejected: bool
    is_current: bool


class CheckExplanation(NamedTuple):
    """A check of an event, done again.

    :ivar code: of the refusal, or of the permission
    """

    check: Check
    is_allowed: bool
    code: str
    sentence: str


class AuthExplanation(NamedTuple):
    """What authorises an event, and whether it does.

    :ivar cited: its auth events
    :ivar keys: the state keys that authorise such an event
    :ivar checks: checks 4 and 5, done again; of an outlier only check 4
    :ivar outcome: what is stored
    """

    event_id: str
    cited: Sequence[CitedEvent]
    keys: Sequence[StateKey]
    checks: Sequence[CheckExplanation]
    outcome: RefusalExplanation

    @property
    def sentence(self) -> str:
        """The explanation as a sentence."""
        parts = [
            f"by {_STATES[each.check]}, it is {'allowed' if each.is_allowed else 'refused'}:"
            f" {each.sentence}"
            for each in self.checks
        ]
        return f"{self.event_id} cites {len(self.cited)} events; {'; '.join(parts)}"


class RefusedEvent(NamedTuple):
    """A link in the chain of causes of a rejection."""

    event_id: str
    check: Check
    refusal: Refusal


class RefusalExplanation(NamedTuple):
    """Why an event was rejected or soft-failed, if it was.

    :ivar outcome: ``accepted``, ``rejected`` or ``soft-failed``
    :ivar causes: the event, then the rejected event that it cites, and so on to the first
    """

    event_id: str
    outcome: str
    causes: Sequence[RefusedEvent]

    @property
    def sentence(self) -> str:
        """The explanation as a sentence."""
        if not self.causes:
            return f"{self.event_id} was accepted: it passed all checks"
        text = f"{self.event_id} was {self.outcome} by {_CHECKS[self.causes[0].check]}: "
        return text + "; because ".join(
            f"{each.refusal.sentence}"
            if place == 0
            else f"{each.event_id}: {each.refusal.sentence}"
            for place, each in enumerate(self.causes)
        )


class VisibilityExplanation(NamedTuple):
    """Whether a user may see an event, and why.

    :ivar history_visibility: in the state after the event
    :ivar visibility_event_id: the event that set it before; None if there is none
    :ivar membership: of the user in the state after the event
    :ivar membership_event_id: the event that set it; None if there is none
    :ivar verdict: None if nobody may see the event, whatever the room's history visibility is
    """

    event_id: str
    user: str
    history_visibility: str | None
    visibility_event_id: str | None
    membership: str
    membership_event_id: str | None
    verdict: VisibilityVerdict | None
    reason: str

    @property
    def sentence(self) -> str:
        """The explanation as a sentence."""
        sight, _, why = self.reason.partition(": ")
        return f"{self.event_id} is {_SIGHTS.get(sight, sight)}: {why}"


_CHECKS = {
    Check.AUTH_EVENTS: "check 4, against its auth events",
    Check.STATE_BEFORE: "check 5, against the state before it",
    Check.CURRENT_STATE: "check 6, against the current state of then",
}

_SIGHTS = {"full": "shown in full", "redacted": "shown in its redacted form"}

_STATES = {
    Check.AUTH_EVENTS: "its auth events",
    Check.STATE_BEFORE: "the state before it",
    Check.CURRENT_STATE: "the current state",
}
