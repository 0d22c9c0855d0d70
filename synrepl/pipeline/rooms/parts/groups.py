"""The states of state groups, in a task; states share memory with those that they were made from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from synrepl.pipeline.rooms.lookup import FoundGroup, RoomLookup
from synrepl.rooms import CompactStateMap, Delta, Slots


class PartGroups:
    """Reads the states of groups.

    :param slots: of the room
    :ivar broken: groups that are missing, or whose chain is not whole
    :ivar misplaced: groups that are of another room, and which
    """

    def __init__(self, room_id: str, slots: Slots, lookup: RoomLookup) -> None:
        self._room_id = room_id
        self._lookup = lookup
        self._states: dict[int, CompactStateMap] = {}
        self._prevs: dict[int, int | None] = {}
        self._closest = self._empty = CompactStateMap(None, slots)
        self.broken: set[int] = set()
        self.misplaced: dict[int, str] = {}

    def state(self, group: int) -> CompactStateMap | None:
        """A state that was read; None if the group is broken."""
        return self._states.get(group)

    def prev(self, group: int) -> int | None:
        """The group that a group is a delta to; None if it is stored in full, or was not read."""
        return self._prevs.get(group)

    def adopt(self, group: int, state: CompactStateMap) -> None:
        """Keep a map equal to a group's state instead, because it shares more memory with others."""
        self._states[group] = state

    def read(self, groups: Collection[int]) -> None:
        """Read the states of groups that are not known yet."""
        missing = [each for each in groups if each not in self._states and each not in self.broken]
        if not missing:
            return
        chains = self._lookup.chains(self._room_id, missing, self._states.keys())
        self.broken.update(each for each in missing if each not in chains)
        for group in _in_order(chains):
            stored = chains[group]
            self._prevs[group] = stored.prev
            if stored.room_id != self._room_id:
                self.misplaced[group] = stored.room_id
            entries = {key: each for key, each in stored.entries.items() if each is not None}
            if stored.prev is None:
                state = self._closest.becoming(entries)
            elif stored.prev in self._states:
                removed = frozenset(stored.entries.keys() - entries.keys())
                state = self._states[stored.prev].with_delta(Delta(entries, removed))
            else:
                self.broken.add(group)
                continue
            self._states[group] = self._closest = state


def _in_order(chains: Mapping[int, FoundGroup]) -> Iterator[int]:
    """The groups, each behind the one that it is a delta to; a circle is cut somewhere."""
    done: set[int] = set()
    for start in sorted(chains):
        path: list[int] = []
        at: int | None = start
        while at is not None and at in chains and at not in done:
            done.add(at)
            path.append(at)
            at = chains[at].prev
        yield from reversed(path)
