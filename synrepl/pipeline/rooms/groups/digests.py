"""The digests of all states of a room, from groups that are stored as changes to one another.

This is the proof of a compaction: the digests of the groups as they are stored, and of the groups as
they shall be stored, are computed in the same way from different rows, and have to be equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synrepl.pipeline.rooms.groups.forest import ROOT, Entries, GroupForest

#: Digests are sums modulo this.
MODULUS = 1 << 128


class StateSum(NamedTuple):
    """Stands for a whole state.

    :ivar size: number of entries
    :ivar total: the sum of the hashes of its entries, modulo :data:`MODULUS`
    """

    size: int
    total: int


def state_sums(
    bases: Sequence[int], changes: Sequence[Entries], hashes: Mapping[tuple[int, int], int]
) -> list[StateSum]:
    """The sums of all states, in a time that goes with the entries of ``changes``.

    :param bases: the place of each group's base, in any order, or :data:`.ROOT`
    :raises ValueError: the bases have a cycle
    """
    above: list[list[int]] = [[] for _ in bases]
    roots: list[int] = []
    for place, base in enumerate(bases):
        (roots if base == ROOT else above[base]).append(place)
    found: list[StateSum | None] = [None] * len(bases)
    for root in roots:
        state: Entries = {}
        total = 0
        # A group is entered, and left when all groups above it are done: then its entries are undone.
        todo: list[tuple[int, list[tuple[int, int | None]] | None, int]] = [(root, None, 0)]
        while todo:
            place, undo, before = todo.pop()
            if undo is not None:
                for key, event in undo:
                    if event is None:
                        del state[key]
                    else:
                        state[key] = event
                total = before
                continue
            undo, before = [], total
            for key, event in changes[place].items():
                old = state.get(key)
                if old == event:
                    continue
                undo.append((key, old))
                state[key] = event
                total += hashes[key, event] - (0 if old is None else hashes[key, old])
            total %= MODULUS
            found[place] = StateSum(len(state), total)
            todo.append((place, undo, before))
            todo += [(each, None, 0) for each in above[place]]
    complete = [each for each in found if each is not None]
    if len(complete) < len(found):
        raise ValueError("the bases of the groups have a cycle")
    return complete


def stored_sums(forest: GroupForest, hashes: Mapping[tuple[int, int], int]) -> list[StateSum]:
    """The sums of the states as they are stored.

    :raises ValueError: a group that is stored whole does not have the entries that were stored
    """
    sums = state_sums(forest.bases, forest.changes, hashes)
    for place, total in forest.whole.items():
        stored = StateSum(forest.stored_rows[place], total % MODULUS)
        if sums[place] != stored:
            raise ValueError(f"group {forest.numbers[place]} is not what was stored")
    return sums
