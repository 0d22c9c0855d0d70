"""What :class:`.RoomStore` returns as JSON, the same over HTTP and at the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from synrepl.rooms import StateKey
from synrepl.storage.rooms.reading.event_access import EventCopy
from synrepl.storage.rooms.reading.explanations import (
    AuthExplanation,
    RefusalExplanation,
    StateExplanation,
    VisibilityExplanation,
)
from synrepl.storage.rooms.reading.graph_slice import GraphEvent
from synrepl.storage.rooms.reading.room_overview import RoomEnds, RoomFigures
from synrepl.storage.rooms.reading.state_reading import StateChange


def room_json(figures: RoomFigures, ends: RoomEnds) -> dict[str, Any]:
    """A room with its ends."""
    return {**figures._asdict(), "ends": ends._asdict()}


def event_json(copy: EventCopy) -> dict[str, Any]:
    """An event with what is known about it; its own JSON byte for byte."""
    return copy._asdict() | {"flags": int(copy.flags), "json": orjson.Fragment(copy.json)}


def graph_json(event: GraphEvent) -> dict[str, Any]:
    """An event of the graph."""
    return event._asdict() | {"flags": int(event.flags)}


def key_json(key: StateKey) -> dict[str, str]:
    """The key of a state entry."""
    return {"type": key[0], "state_key": key[1]}


def state_json(state: Mapping[StateKey, str]) -> list[dict[str, Any]]:
    """A state as event IDs, in the order of its keys."""
    return [{**key_json(key), "event_id": state[key]} for key in sorted(state)]


def change_json(change: StateChange) -> list[dict[str, Any]]:
    """What differs between two states, in the order of the keys."""
    return [
        {**key_json(key), "old": change.old[key], "new": change.new[key]}
        for key in sorted(change.old)
    ]


def state_explanation_json(found: StateExplanation) -> dict[str, Any]:
    """Where an entry of a state comes from."""
    decision = found.decision
    return found._asdict() | {
        "key": key_json(found.key),
        "place": found.place._asdict(),
        "decision": None
        if decision is None
        else {
            "step": decision.step.value,
            "candidates": sorted(decision.candidates),
            "refused": {each: why._asdict() for each, why in decision.refused.items()},
        },
        "sentence": found.sentence,
    }


def auth_explanation_json(found: AuthExplanation) -> dict[str, Any]:
    """What authorises an event."""
    return {
        "event_id": found.event_id,
        "cited": [each._asdict() for each in found.cited],
        "keys": [key_json(key) for key in found.keys],
        "checks": [each._asdict() for each in found.checks],
        "outcome": refusal_explanation_json(found.outcome),
        "sentence": found.sentence,
    }


def refusal_explanation_json(found: RefusalExplanation) -> dict[str, Any]:
    """Why an event was rejected or soft-failed."""
    causes = [
        {"event_id": each.event_id, "check": each.check.value, **each.refusal._asdict()}
        for each in found.causes
    ]
    return found._asdict() | {"causes": causes, "sentence": found.sentence}


def visibility_explanation_json(found: VisibilityExplanation) -> dict[str, Any]:
    """Whether a user may see an event."""
    verdict = found.verdict
    return found._asdict() | {
        "verdict": None
        if verdict is None
        else {"sight": verdict.sight.value, "rule": verdict.reason.code},
        "sentence": found.sentence,
    }
