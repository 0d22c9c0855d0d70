"""A record of what state resolution did, for explanations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from synrepl.rooms.event import Event
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.state import StateKey


class ResolutionStep(StrEnum):
    """The step that decided about a key; the names are those of the specification."""

    UNCONFLICTED = "unconflicted state map"
    POWER = "iterative auth checks of power events"
    MAINLINE = "iterative auth checks in mainline ordering"
    ONLY_CANDIDATE = "union of states"  #: version 1
    BY_DEPTH = "conflicted events by depth"  #: version 1
    NONE = "no event was allowed"


class CheckedEvent(NamedTuple):
    """An event that a resolution tried to apply.

    :ivar refusal: None if it was applied
    """

    step: ResolutionStep
    event_id: str
    key: StateKey
    refusal: Refusal | None


class ResolutionDecision(NamedTuple):
    """How a resolution came to the entry of a key.

    :ivar candidates: the entries of the states that were resolved
    :ivar chosen: the entry of the resolved state
    :ivar refused: events with this key that the auth rules refused, with the reason
    """

    key: StateKey
    step: ResolutionStep
    candidates: Collection[str]
    chosen: str | None
    refused: Mapping[str, Refusal]

    @property
    def sentence(self) -> str:
        """The decision as a sentence."""
        key = f"({self.key[0]}, {self.key[1]!r})"
        if self.step is ResolutionStep.UNCONFLICTED:
            return f"all states have the same entry for {key}"
        if self.chosen is None:
            text = f"the resolved state has no entry for {key}: no event was allowed"
        elif self.step is ResolutionStep.ONLY_CANDIDATE:
            text = f"{self.chosen} is the only candidate for {key}, although some states lack it"
        elif self.step is ResolutionStep.BY_DEPTH:
            text = f"{self.chosen} is the last of the candidates for {key} by depth that is allowed"
        else:
            text = f"{self.chosen} is the last event for {key} that was allowed, in the {self.step}"
        for event_id, refusal in self.refused.items():
            text += f"; {event_id} was refused: {refusal.sentence}"
        return text


class ResolutionTrace:
    """Filled by a resolution that is given one.

    :ivar candidates: by conflicted key, the entries of the states
    :ivar full_conflicted: number of events of the full conflicted set; 0 in version 1
    :ivar checked: events in the order in which they were tried
    """

    def __init__(self) -> None:
        self.candidates: Mapping[StateKey, Collection[str]] = {}
        self.full_conflicted = 0
        self.checked: list[CheckedEvent] = []

    def check(self, step: ResolutionStep, event: Event, refusal: Refusal | None) -> None:
        """Record that an event was tried."""
        if event.state_key is not None:
            key = event.type, event.state_key
            self.checked.append(CheckedEvent(step, event.event_id, key, refusal))

    def choose(self, step: ResolutionStep, key: StateKey, event_id: str) -> None:
        """Record that a step chose an event."""
        self.checked.append(CheckedEvent(step, event_id, key, None))

    def decision(self, key: StateKey, entry: str | None) -> ResolutionDecision:
        """How the resolution came to the entry of a key.

        :param entry: that of the resolved state
        """
        tried = [each for each in self.checked if each.key == key]
        applied = [each for each in tried if each.refusal is None]
        refused = {each.event_id: each.refusal for each in tried if each.refusal is not None}
        candidates = self.candidates.get(key, ())
        if applied and applied[-1].event_id == entry:
            step = applied[-1].step
        else:
            step = ResolutionStep.NONE if candidates else ResolutionStep.UNCONFLICTED
        return ResolutionDecision(key, step, candidates, entry, refused)
