"""Versions 2 and 2.1 of state resolution, by power and mainline.

Sources: https://spec.matrix.org/v1.16/rooms/v2/#algorithm, whose steps these are, and for 2.1
https://spec.matrix.org/v1.16/rooms/v12/#state-resolution (MSC4297).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from synrepl.rooms.chains import AuthChains, Fetch, auth_dependencies
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE_KEY, JOIN_RULES_KEY, MEMBER, POWER_LEVELS_KEY
from synrepl.rooms.resolution.conflict import Conflict
from synrepl.rooms.resolution.iterative_auth_checks import IterativeAuthState
from synrepl.rooms.resolution.sorting import mainline_sort, reverse_topological_power_sort
from synrepl.rooms.resolution.trace import ResolutionStep, ResolutionTrace
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import Resolution

#: Keys whose events are always power events. As in Synapse, other state keys are not
#: (docs/adr/0014-state-resolution.md).
_RULES = (POWER_LEVELS_KEY, JOIN_RULES_KEY, CREATE_KEY)


class ResolutionSteps(NamedTuple):
    """The steps in which 2.1 differs from 2.

    :ivar full_conflicted_set: the events to sort and apply
    :ivar start: the initial state
    """

    full_conflicted_set: Callable[[Conflict, AuthChains], set[str]]
    start: Callable[[Conflict], Callable[[StateKey], str | None]]


def resolve_v2(
    steps: ResolutionSteps,
    conflict: Conflict,
    fetch: Fetch,
    chains: AuthChains,
    rejected: Container[str] = (),
    trace: ResolutionTrace | None = None,
) -> dict[StateKey, str]:
    """Resolve the conflicted keys; the result may have other keys of the full conflicted set as well."""
    ids = steps.full_conflicted_set(conflict, chains)
    full = dict(zip(ids, map(fetch, ids), strict=True))
    state = IterativeAuthState(steps.start(conflict), fetch, rejected)
    power = with_auth_chains(power_events(full), full)
    # Steps 1 and 2.
    state.iterative_auth_checks(
        reverse_topological_power_sort(power, fetch, chains.power_levels),
        ResolutionStep.POWER,
        trace,
    )
    # Steps 3 and 4.
    others = [event for event_id, event in full.items() if event_id not in power]
    tip = state.entry(POWER_LEVELS_KEY)
    state.iterative_auth_checks(
        mainline_sort(others, tip, chains.power_levels), ResolutionStep.MAINLINE, trace
    )
    if trace is not None:
        trace.full_conflicted = len(full)
    return state.applied


def conflicted_and_auth_difference(conflict: Conflict, chains: AuthChains) -> set[str]:
    """The full conflicted set of version 2."""
    differing = conflict.differing_events()
    found = chains.difference(differing, conflict.unconflicted_events())
    return found | differing.events()


def with_conflicted_subgraph(conflict: Conflict, chains: AuthChains) -> set[str]:
    """The full conflicted set of version 2.1, which includes the conflicted state subgraph."""
    conflicted = conflict.differing_events().events()
    return conflicted_and_auth_difference(conflict, chains) | chains.subgraph(conflicted)


def from_unconflicted(conflict: Conflict) -> Callable[[StateKey], str | None]:
    """The initial state of version 2: the unconflicted state map."""
    return conflict.unconflicted


def from_empty_state(conflict: Conflict) -> Callable[[StateKey], str | None]:
    """The initial state of version 2.1: empty."""
    return lambda key: None


#: The steps of each algorithm.
STEPS: Mapping[Resolution, ResolutionSteps] = MappingProxyType(
    {
        Resolution.V2: ResolutionSteps(conflicted_and_auth_difference, from_unconflicted),
        Resolution.V2_1: ResolutionSteps(with_conflicted_subgraph, from_empty_state),
    }
)


def power_events(full: Mapping[str, Event]) -> set[str]:
    """The power events: those that could take a right from a user."""
    return {event_id for event_id, event in full.items() if is_power_event(event)}


def is_power_event(event: Event) -> bool:
    """See :func:`power_events`."""
    kind = event.type
    if kind == MEMBER:
        return (
            event.state_key is not None
            and event.sender != event.state_key
            and event.membership in ("leave", "ban")
        )
    return (kind, event.state_key) in _RULES


def with_auth_chains(power: Iterable[str], full: Mapping[str, Event]) -> dict[str, Event]:
    """Step 1: the power events, with those of the full conflicted set in their auth chains.

    As in Synapse, only events that are reached without leaving that set
    (docs/adr/0014-state-resolution.md).
    """
    found = {event_id: full[event_id] for event_id in power}
    waiting = list(found.values())
    while waiting:
        for event_id in auth_dependencies(waiting.pop()):
            if event_id not in found:
                event = full.get(event_id)
                if event is not None:
                    found[event_id] = event
                    waiting.append(event)
    return found
