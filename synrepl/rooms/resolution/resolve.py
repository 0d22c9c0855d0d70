"""One state of a room from several."""

from __future__ import annotations

from collections.abc import Container, Sequence

from synrepl.rooms.chains import AuthChains, Fetch, UnknownEvent, chains_of
from synrepl.rooms.event import Event
from synrepl.rooms.resolution.conflict import Conflict, conflict
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
    """The state that several states of a room resolve to, by the algorithm of its version.

    :param state_sets: in any order; one of them is returned if all are the same
    :param fetch: reads an event, the same one more than once; ``KeyError`` means that there is none
    :param chains: auth chains of (at least) the events of these states; by default, they are worked out
        with ``fetch`` each time, which takes far longer
    :param rejected: events that the auth rules refused once: they decide over no other, as a state's
        entries or cited
    :raises UnknownEvent: an event of a state is not there
    :raises MissingAuthEvent: one that is depended on is not there
    :raises AuthCycle: events depend on one another
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
    """What a resolution of these states goes through; of room version 1, the events in conflict."""
    found = conflict(state_sets)
    if version.resolution is Resolution.V1:
        return set().union(*found.conflicted_events())
    return STEPS[version.resolution].full_conflicted_set(found, chains)


def resolve_conflict(
    version: RoomVersion,
    found: Conflict,
    fetch: Fetch,
    chains: AuthChains | None,
    rejected: Container[str],
) -> dict[StateKey, str]:
    """The same for a conflict that is known: entries that overlay what the states agree on.

    A key in conflict for which there is none is in no state any more.
    """

    def known(event_id: str) -> Event:
        try:
            return fetch(event_id)
        except KeyError:
            raise UnknownEvent(event_id=event_id) from None

    if version.resolution is Resolution.V1:
        return resolve_v1(found, known)
    if chains is None:
        chains = chains_of(_all_events(found), fetch)
    return resolve_v2(STEPS[version.resolution], found, known, chains, rejected)


def _all_events(found: Conflict) -> set[str]:
    return set().union(*found.conflicted_events(), found.unconflicted_events())
