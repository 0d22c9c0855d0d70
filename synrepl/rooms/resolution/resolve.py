"""State resolution, by the algorithm of the room version."""

from __future__ import annotations

from collections.abc import Container, Sequence

from synrepl.rooms.chains import AuthChains, Fetch, UnknownEvent, chains_of
from synrepl.rooms.event import Event
from synrepl.rooms.resolution.conflict import Conflict, conflict
from synrepl.rooms.resolution.trace import ResolutionTrace
from synrepl.rooms.resolution.v1 import resolve_v1
from synrepl.rooms.resolution.v2 import STEPS, resolve_v2
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.versions import Resolution, RoomVersion


def resolve(
    version: RoomVersion,
    state_sets: Sequence[StateMap],
    fetch: Fetch,
    chains: AuthChains | None = None,
    rejected: Container[str] = frozenset(),
) -> StateMap:
    """Resolve several states of a room to one.

    :param state_sets: in any order; one of them is returned if all are equal
    :param fetch: reads an event, possibly more than once; ``KeyError`` if there is none
    :param chains: auth chains of (at least) the events of these states; by default, they are computed
        with ``fetch`` each time, which takes far longer
    :param rejected: rejected events, which must not authorise others, from a state or as auth events
    :raises UnknownEvent: an event of a state is missing
    :raises MissingAuthEvent: an event of an auth chain is missing
    :raises AuthCycle: an auth chain contains a cycle
    """
    if not state_sets:
        return {}
    found = conflict(state_sets)
    if not found.keys:
        return state_sets[0]
    return found.resolved_state(resolve_conflict(version, found, fetch, chains, rejected))


def full_conflicted_set(
    version: RoomVersion, state_sets: Sequence[StateMap], chains: AuthChains
) -> set[str]:
    """The full conflicted set of states; in room version 1, the conflicted events."""
    found = conflict(state_sets)
    if version.resolution is Resolution.V1:
        return found.differing_events().events()
    return STEPS[version.resolution].full_conflicted_set(found, chains)


def resolve_conflict(
    version: RoomVersion,
    found: Conflict,
    fetch: Fetch,
    chains: AuthChains | None,
    rejected: Container[str],
    trace: ResolutionTrace | None = None,
) -> dict[StateKey, str]:
    """Resolve a conflict to the entries that are put on top of the unconflicted state map.

    A conflicted key without an entry is not in the resolved state.

    :param trace: filled with what was done
    """
    if trace is not None:
        trace.candidates = found.candidates()

    def known(event_id: str) -> Event:
        try:
            return fetch(event_id)
        except KeyError:
            raise UnknownEvent(event_id=event_id) from None

    if version.resolution is Resolution.V1:
        return resolve_v1(found, known, trace)
    if chains is None:
        chains = chains_of(_all_events(found), fetch)
    return resolve_v2(STEPS[version.resolution], found, known, chains, rejected, trace)


def _all_events(found: Conflict) -> set[str]:
    return found.differing_events().events().union(found.unconflicted_events())
