"""The states of a server's state groups, in bounded memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from synrepl.rooms import CompactStateMap, Delta, Slots
from synrepl.services.rooms.importing.findings import FindingKind, ImportFinding
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.rooms.states import SourceGroup, group_entries, read_groups

#: States kept between batches. Each is a few hundred bytes more than the one that it was made from.
MAX_STATES = 1024

#: Longest chain of groups that is followed. Synapse's have a hundred, the compressor's fewer.
MAX_CHAIN = 2000


class GroupState(NamedTuple):
    """The state of a group.

    :ivar is_whole: False if a group that it overlays is missing, or is part of a cycle
    """

    state: CompactStateMap
    is_whole: bool = True


class GroupStates:
    """Reads states of groups; states share memory with those that they were made from.

    :param slots: of the room
    """

    def __init__(self, room_id: str, slots: Slots, max_states: int = MAX_STATES) -> None:
        self._room_id = room_id
        self._empty = CompactStateMap(None, slots)
        self._states: dict[int, GroupState] = {}
        self._max_states = max_states
        self._closest = self._empty

    def __getitem__(self, group: int) -> GroupState:
        """A state that was read by :meth:`read`."""
        return self._states[group]

    def __contains__(self, group: object) -> bool:
        return group in self._states

    def adopt(self, group: int, state: CompactStateMap) -> None:
        """Keep a map equal to a group's state instead, because it shares more memory with others."""
        known = self._states.get(group)
        if known is not None and known.is_whole:
            self._states[group] = GroupState(state)

    def trim(self) -> None:
        """Drop the states that were read first; between batches."""
        for group in list(self._states)[: max(0, len(self._states) - self._max_states)]:
            del self._states[group]

    def read(self, txn: Transaction, groups: Iterable[int]) -> list[ImportFinding]:
        """Read the states of groups that are not known yet.

        :returns: groups that are missing, empty or of another room
        """
        chain = self._chain(txn, {each for each in groups if each not in self._states})
        if not chain:
            return []
        findings = list(self._broken(chain))
        deltas = [each for each, stored in chain.items() if stored and stored.prev is not None]
        whole = [each for each, stored in chain.items() if stored and stored.prev is None]
        entries = dict(group_entries(txn, deltas))
        for group in _in_order(chain):
            stored = chain[group]
            if stored is None:
                self._states[group] = GroupState(self._empty, is_whole=False)
                continue
            if stored.prev is None or stored.prev not in self._states:
                # One at a time: such a group has as many entries as the room has members.
                found = entries.pop(group, None) if group not in whole else None
                if found is None:
                    found = dict(group_entries(txn, [group])).get(group, {})
                state = self._closest.becoming(found)
                self._states[group] = GroupState(state, is_whole=stored.prev is None)
            else:
                base = self._states[stored.prev]
                state = base.state.with_delta(Delta(entries.pop(group, {})))
                self._states[group] = GroupState(state, base.is_whole)
            self._closest = state
        return findings

    def _chain(self, txn: Transaction, groups: set[int]) -> dict[int, SourceGroup | None]:
        """The groups, and those that they overlay, until one that is known; None for a missing one."""
        found: dict[int, SourceGroup | None] = {}
        ahead = groups
        for _ in range(MAX_CHAIN):
            if not ahead:
                break
            stored = read_groups(txn, ahead)
            found.update({each: stored.get(each) for each in ahead})
            ahead = {
                each.prev
                for each in stored.values()
                if each.prev is not None
                and each.prev not in found
                and each.prev not in self._states
            }
        return found

    def _broken(self, chain: dict[int, SourceGroup | None]) -> Iterable[ImportFinding]:
        for group, stored in chain.items():
            if stored is None:
                yield ImportFinding(
                    FindingKind.EMPTY_GROUP,
                    self._room_id,
                    group=group,
                    column="state_groups",
                    ours="a row",
                )
                continue
            if stored.room_id != self._room_id:
                yield ImportFinding(
                    FindingKind.OTHER_ROOM,
                    self._room_id,
                    stored.event_id,
                    group,
                    column="room_id",
                    theirs=stored.room_id,
                    ours=self._room_id,
                )
            if stored.prev is not None and stored.prev_room_id not in (None, self._room_id):
                yield ImportFinding(
                    FindingKind.OTHER_ROOM,
                    self._room_id,
                    stored.event_id,
                    group,
                    column="prev_state_group",
                    theirs=stored.prev_room_id,
                    ours=self._room_id,
                )


def _in_order(chain: dict[int, SourceGroup | None]) -> Collection[int]:
    """The groups, each behind the one that it overlays; a cycle is cut somewhere."""
    ordered: dict[int, None] = {}
    for start in sorted(chain):
        path: list[int] = []
        at: int | None = start
        while at is not None and at in chain and at not in ordered and at not in path:
            path.append(at)
            stored = chain[at]
            at = None if stored is None else stored.prev
        ordered.update(dict.fromkeys(reversed(path)))
    return ordered
