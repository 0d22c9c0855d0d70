"""Version 1 of state resolution: by depth, then by hash.

Source: https://spec.matrix.org/v1.16/rooms/v1/#state-resolution, whose steps these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha1

from synrepl.rooms.chains import Fetch
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import JOIN_RULES_KEY, MEMBER, POWER_LEVELS_KEY
from synrepl.rooms.resolution.conflict import Conflict
from synrepl.rooms.resolution.iterative_auth_checks import IterativeAuthState
from synrepl.rooms.resolution.trace import ResolutionStep, ResolutionTrace
from synrepl.rooms.state import StateKey

#: The event types that authorise others, in the order in which they are resolved.
PHASES = (POWER_LEVELS_KEY[0], JOIN_RULES_KEY[0], MEMBER)

#: Conflicted events by key.
_Conflicted = Mapping[StateKey, list[Event]]


def resolve_v1(
    conflict: Conflict, fetch: Fetch, trace: ResolutionTrace | None = None
) -> dict[StateKey, str]:
    """Resolve the conflicted keys."""
    candidates = conflict.candidates()
    unconflicted = union_without_conflicts(candidates)
    conflicted = {
        key: sort_by_depth(map(fetch, candidates[key]))
        for key in sorted(conflict.keys - unconflicted.keys())
    }
    state = IterativeAuthState(
        lambda key: unconflicted.get(key) or conflict.unconflicted(key), fetch
    )
    for kind in PHASES:
        resolve_kind(kind, conflicted, state)
    resolve_others(conflicted, state)
    if trace is not None:
        for key, event_id in unconflicted.items():
            trace.choose(ResolutionStep.ONLY_CANDIDATE, key, event_id)
        for key, event_id in state.applied.items():
            trace.choose(ResolutionStep.BY_DEPTH, key, event_id)
    return unconflicted | state.applied


def union_without_conflicts(candidates: Mapping[StateKey, set[str]]) -> dict[StateKey, str]:
    """The first step: a key with one candidate is unconflicted, even if some states lack it."""
    return {key: next(iter(ids)) for key, ids in candidates.items() if len(ids) == 1}


def sort_by_depth(events: Iterable[Event]) -> list[Event]:
    """Sort by ascending depth, then by descending SHA-1 of the ID."""
    return sorted(events, key=lambda event: (event.depth, -_hash(event)))


def _hash(event: Event) -> int:
    return int.from_bytes(sha1(event.event_id.encode(), usedforsecurity=False).digest(), "big")


def resolve_kind(kind: str, conflicted: _Conflicted, state: IterativeAuthState) -> None:
    """Resolve power levels, join rules, or memberships.

    The result for one key does not authorise events of another key of the same type
    (docs/adr/0014-state-resolution.md).
    """
    chosen = {
        key: last_allowed(key, events, state)
        for key, events in conflicted.items()
        if key[0] == kind
    }
    for key, event in chosen.items():
        state.apply(event, key)


def last_allowed(key: StateKey, events: Sequence[Event], state: IterativeAuthState) -> Event:
    """The last of these events before the first that is not allowed after its predecessor."""
    chosen, *others = events
    for event in others:
        state.apply(chosen, key)
        if not state.allows(event):
            break
        chosen = event
    state.revert(key)
    return chosen


def resolve_others(conflicted: _Conflicted, state: IterativeAuthState) -> None:
    """Resolve all other types: the highest allowed event, else the lowest (docs/adr/0014-state-resolution.md)."""
    for key, events in conflicted.items():
        if key[0] not in PHASES:
            lowest, *above = events
            allowed = filter(state.allows, reversed(above))
            state.apply(next(allowed, lowest), key)
