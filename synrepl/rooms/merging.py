"""What the states after several events of a room are together."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from synrepl.rooms.chains import AuthChains
from synrepl.rooms.event import Event
from synrepl.rooms.resolution.resolve import resolve
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_map import CompactStateMap
from synrepl.rooms.versions import RoomVersion

#: Of how many resolutions the result is kept.
MAX_KEPT = 512


class Merging:
    """Resolves states of one room, and keeps the last results.

    :param fetch: reads an event of the room
    :param chains: auth chains of all its events
    :param rejected: those that were rejected
    """

    __slots__ = ("_chains", "_fetch", "_kept", "_rejected", "_version")

    def __init__(
        self,
        version: RoomVersion,
        fetch: Callable[[str], Event],
        chains: AuthChains,
        rejected: Container[str],
    ) -> None:
        self._version = version
        self._fetch = fetch
        self._chains = chains
        self._rejected = rejected
        self._kept: dict[frozenset[int], tuple[list[CompactStateMap], CompactStateMap]] = {}

    def merged(
        self, states: list[CompactStateMap], keys: Sequence[StateKey] | None = None
    ) -> CompactStateMap:
        """What these resolve to; states that are the same object, or equal, take no resolution.

        Each is compared with the first alone, so that many take no longer than they are: how often
        one is there does not matter where states are resolved.

        :param states: at least one
        :param keys: where nothing else matters, any state that has the same under these is enough.
            What all states have stays, so mostly that takes no resolution either; what none of them has
            may come up in one
        """
        first = states[0]
        if len(states) == 1:
            return first
        if keys is not None:
            entries = first.several(keys)
            if None not in entries and all(each.several(keys) == entries for each in states):
                return first
        once = {id(state): state for state in states}
        different = [state for state in once.values() if state is first or state != first]
        return first if len(different) == 1 else self._resolved(different)

    def _resolved(self, states: list[CompactStateMap]) -> CompactStateMap:
        choice = frozenset(map(id, states))
        found = self._kept.get(choice)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            # The states are kept with it, so that their ids stay theirs.
            found = self._kept[choice] = states, self._resolve(states)
        return found[1]

    def _resolve(self, states: list[CompactStateMap]) -> CompactStateMap:
        resolved = resolve(self._version, states, self._fetch, self._chains, self._rejected)
        made = states[0].becoming(resolved)
        # Maps that are the same object need not be compared later.
        return next((state for state in states if state == made), made)

    def forget(self) -> None:
        """Keep no results, since other events are rejected now."""
        self._kept.clear()
