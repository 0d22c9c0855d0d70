"""The unconflicted state map and the conflicted state set of several states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import filterfalse

from synrepl.rooms.differing import DifferingEvents, EventChange
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Delta, delta


@dataclass(frozen=True, slots=True)
class Conflict:
    """States of a room, and their conflicted keys.

    "Unconflicted state map and conflicted state set" of https://spec.matrix.org/v1.16/rooms/v2/#definitions:
    a key that is missing from one of the states is conflicted.

    :ivar state_sets: at least one
    :ivar keys: the conflicted keys
    :ivar changes: the deltas from the first state to each of the others
    """

    state_sets: Sequence[StateMap]
    keys: Set[StateKey]
    changes: Sequence[Delta]

    def unconflicted(self, key: StateKey) -> str | None:
        """The unconflicted entry of a key."""
        return None if key in self.keys else self.state_sets[0].get(key)

    def unconflicted_events(self) -> Iterator[str]:
        """The events of the unconflicted state map."""
        return without_keys(self.state_sets[0], self.keys)

    def differing_events(self) -> DifferingEvents:
        """For each state, the events of its conflicted keys."""
        of_first = self._of_first()
        places = {key: place for place, key in enumerate(of_first)}
        changes = [
            EventChange(
                change.entries.values(),
                [places[key] for key in (*change.entries, *change.removed) if key in places],
            )
            for change in self.changes
        ]
        return DifferingEvents(list(of_first.values()), changes)

    def candidates(self) -> dict[StateKey, set[str]]:
        """By conflicted key, the entries of all states."""
        found = {key: {event_id} for key, event_id in self._of_first().items()}
        for change in self.changes:
            for key, event_id in change.entries.items():
                found.setdefault(key, set()).add(event_id)
        return found

    def _of_first(self) -> dict[StateKey, str]:
        first = self.state_sets[0]
        return {key: event_id for key in self.keys if (event_id := first.get(key)) is not None}

    def resolved_state(self, resolved: Mapping[StateKey, str]) -> StateMap:
        """The resolved state: the unconflicted entries, and what the conflicted keys resolve to.

        Step 5 of https://spec.matrix.org/v1.16/rooms/v2/#algorithm.
        """
        first = self.state_sets[0]
        change = self.resolution_delta(resolved)
        if isinstance(first, CompactStateMap):
            return first.with_delta(change)
        whole = {**first, **change.entries}
        for key in change.removed:
            whole.pop(key, None)
        return whole

    def resolution_delta(self, resolved: Mapping[StateKey, str]) -> Delta:
        """The delta from the first state to the resolved state."""
        first = self.state_sets[0]
        entries = {
            key: event_id
            for key, event_id in resolved.items()
            if key in self.keys or key not in first
        }
        return Delta(entries, frozenset(self.keys - entries.keys()))


def without_keys(state: StateMap, keys: Collection[StateKey]) -> Iterator[str]:
    """Yield the events of a state except those under some keys. The state is iterated lazily."""
    other = {state.get(key) for key in keys}
    yield from filterfalse(other.__contains__, state.values())


def conflict(state_sets: Sequence[StateMap]) -> Conflict:
    """Compare states.

    :param state_sets: at least one
    """
    first, *others = state_sets
    changes = [delta(first, each) for each in others]
    keys: set[StateKey] = set()
    for change in changes:
        keys.update(change.entries, change.removed)
    return Conflict(state_sets, keys, changes)
