"""Where states of a room agree, and where they do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import filterfalse

from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Delta, differing_keys


@dataclass(frozen=True, slots=True)
class Conflict:
    """States of a room, and the keys that not all of them have with the same event.

    "Unconflicted state map and conflicted state set" of https://spec.matrix.org/v1.16/rooms/v2/#definitions:
    a key that is missing from one of them is in conflict.

    :ivar state_sets: at least one
    """

    state_sets: Sequence[StateMap]
    keys: Set[StateKey]

    def agreed(self, key: StateKey) -> str | None:
        """The entry that all of them have."""
        return None if key in self.keys else self.state_sets[0].get(key)

    def all_agreed(self) -> Iterator[str]:
        """The events of the unconflicted state map."""
        first = self.state_sets[0]
        other = {first.get(key) for key in self.keys}
        return filterfalse(other.__contains__, first.values())

    def differing(self) -> list[list[str]]:
        """The other events of each of them."""
        return [
            [event_id for key in self.keys if (event_id := states.get(key)) is not None]
            for states in self.state_sets
        ]

    def candidates(self, key: StateKey) -> set[str]:
        """The entries that they have, of a key in conflict."""
        found = (states.get(key) for states in self.state_sets)
        return {event_id for event_id in found if event_id is not None}

    def settled(self, resolved: Mapping[StateKey, str]) -> StateMap:
        """The whole state: what they agree on, and for other keys what was resolved.

        Step 5 of https://spec.matrix.org/v1.16/rooms/v2/#algorithm.
        """
        first = self.state_sets[0]
        entries = {
            key: event_id
            for key, event_id in resolved.items()
            if key in self.keys or key not in first
        }
        gone = frozenset(self.keys - entries.keys())
        if isinstance(first, CompactStateMap):
            return first.with_delta(Delta(entries, gone))
        whole = {**first, **entries}
        for key in gone:
            whole.pop(key, None)
        return whole


def conflict(state_sets: Sequence[StateMap]) -> Conflict:
    """Where states disagree.

    :param state_sets: at least one
    """
    return Conflict(state_sets, differing_keys(state_sets))
