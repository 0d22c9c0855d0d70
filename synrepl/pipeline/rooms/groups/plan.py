"""Plans how the state groups of a room are stored in few rows, with short chains.

Along a path of ``n`` groups where each changes one entry, a chain takes ``n`` rows, but its length is the
number of groups to read for one. Allow ``r`` levels: a group refers to the one before it, or to one further
back, the further the higher its level. At most ``C(h + r, r)`` groups can be reached in ``h`` steps at about
``r`` rows a group, if those behind a group that took ``k`` steps get the ``h - k`` that are left
(:func:`reach`). Levels of fixed sizes waste the difference: three of 100, 50 and 25 reach 125,000
groups in 175 steps, and :func:`reach` in 90.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

from synrepl.pipeline.rooms.groups.forest import ROOT, Entries, GroupForest

#: Maximum number of further groups to read for one. A Synapse stores the next group whole if there are more.
MAX_HOPS = 100

#: The longest path leaves one in so many steps to branches.
_SPARED = 4

#: Maximum number of levels that are tried.
_LEVELS = 4


def reach(hops: int, levels: int) -> int:
    """The number of groups, with the first, that can be reached in so many steps."""
    return comb(hops + levels, levels)


def bases_on_path(length: int, hops: int, levels: int) -> tuple[list[int], list[int]]:
    """The bases of the groups of a path, as positions, and how many steps each is from its first.

    Where the path is longer than :func:`reach`, another group has the base :data:`.ROOT`.
    """
    bases, steps = [ROOT] * length, [0] * length
    whole = reach(hops, levels)
    for first in range(0, length, whole):
        _fill(bases, steps, first, min(first + whole, length), hops, levels)
    return bases, steps


def _fill(bases: list[int], steps: list[int], at: int, end: int, left: int, levels: int) -> None:
    """Give bases to the groups behind ``at``."""
    if not levels:
        return
    while True:
        # The next group of this level, with those of lower levels before it.
        following = at + reach(left, levels - 1)
        _fill(bases, steps, at, min(following, end), left, levels - 1)
        if following >= end or not left:
            return
        bases[following], steps[following] = at, steps[at] + 1
        at = following
        left -= 1


@dataclass(slots=True)
class GroupPlan:
    """How the groups of a forest are to be stored.

    :ivar bases: the place of each group's base, or :data:`.ROOT`
    :ivar changes: the entries to store with each group
    :ivar hops: how many further groups have to be read for each
    """

    bases: list[int]
    changes: list[Entries]
    hops: list[int]

    @property
    def rows(self) -> int:
        """The number of entries to store."""
        return sum(map(len, self.changes))


class _Option(NamedTuple):
    rows: int
    bases: list[int]
    changes: list[Entries]
    hops: list[int]


def plan_groups(forest: GroupForest, max_hops: int = MAX_HOPS) -> GroupPlan:
    """Plan the groups of a room.

    The longest path of the forest is planned first, then the longest that branches off, and so on. A
    branch begins at a group below it that leaves enough steps. Where many branch off, it is better if paths leave
    them some steps: both ways are planned, and the one with fewer rows is taken.
    """
    paths = list(_paths(forest))
    plan = _plan(forest, paths, max_hops, 0)
    if any(forest.bases[path[0]] != ROOT for path in paths):
        sparing = _plan(forest, paths, max_hops, max_hops // _SPARED)
        plan = min(plan, sparing, key=lambda each: each.rows)
    return plan


def _plan(
    forest: GroupForest, paths: Sequence[Sequence[int]], max_hops: int, spared: int
) -> GroupPlan:
    """A plan.

    :param spared: the steps that a path leaves for those that branch off; these leave half as many, and so on
    """
    size = len(forest)
    plan = GroupPlan([ROOT] * size, [{} for _ in range(size)], [0] * size)
    left = [0] * size
    for path in paths:
        start = forest.bases[path[0]]
        leaves = spared if start == ROOT else left[start] // 2
        for place in path:
            left[place] = leaves
        best: _Option | None = None
        for where in _options(plan, len(path), start, max_hops - leaves):
            found = _on_path(forest, path, *where, limit=None if best is None else best.rows)
            best = best if found is None else found
        assert best is not None
        for place, base, change, hops in zip(path, *best[1:], strict=True):
            plan.bases[place], plan.changes[place], plan.hops[place] = base, change, hops
    return plan


def _paths(forest: GroupForest) -> Iterator[list[int]]:
    """The forest as paths: each group is followed by the one with the longest path above it.

    A path comes after the one that it branches off from.
    """
    size = len(forest)
    height = [0] * size
    tallest = [ROOT] * size
    for place in range(size - 1, -1, -1):
        base = forest.bases[place]
        if base != ROOT and height[place] + 1 > height[base]:
            height[base], tallest[base] = height[place] + 1, place
    for start in range(size):
        base = forest.bases[start]
        if base != ROOT and tallest[base] == start:
            continue
        path = [start]
        while tallest[path[-1]] != ROOT:
            path.append(tallest[path[-1]])
        yield path


class _Where(NamedTuple):
    """A way to store a path.

    :ivar below: the group that it branches off from, or :data:`.ROOT`
    :ivar hops: the number of steps to ``below``
    :ivar left: the number of steps from there
    """

    below: int
    hops: int
    left: int
    levels: int


def _options(plan: GroupPlan, length: int, start: int, max_hops: int) -> list[_Where]:
    """Ways to store a path that branches off at ``start``, the most promising first."""
    found: dict[tuple[int, int], _Where] = {}
    for levels in range(1, _LEVELS + 1):
        below = start
        hops = 0
        if start != ROOT:
            while plan.hops[below] and reach(max_hops - plan.hops[below], levels) <= length:
                below = plan.bases[below]
            hops = plan.hops[below]
        left = max_hops - hops
        enough = reach(left, levels) > length
        found[below, levels if not enough else 0] = _Where(below, hops, left, levels)
        if enough and below == start:
            break
    return list(found.values())[::-1]


def _on_path(
    forest: GroupForest,
    path: Sequence[int],
    below: int,
    hops: int,
    left: int,
    levels: int,
    limit: int | None,
) -> _Option | None:
    """A path stored in one way; None if that takes no fewer rows than ``limit``."""
    nodes = path if below == ROOT else (below, *path)
    positions, steps = bases_on_path(len(nodes), left, levels)
    behind = reach(left, levels)  # groups from there on are behind another root
    bases = [ROOT if each == ROOT else nodes[each] for each in positions]
    total = [each + (hops if nth < behind else 0) for nth, each in enumerate(steps)]
    skip = len(nodes) - len(path)
    changes: list[Entries] = []
    rows = 0
    for place, base in zip(path, bases[skip:], strict=True):
        changes.append(_change(forest, place, base))
        rows += len(changes[-1])
        if limit is not None and rows >= limit:
            return None
    return _Option(rows, bases[skip:], changes, total[skip:])


def _change(forest: GroupForest, place: int, base: int) -> Entries:
    """What a group changes of the state of one below it."""
    at = forest.bases[place]
    change = forest.changes[place]
    if at == base:
        return change
    change = dict(change)
    while at != base:
        for key, event in forest.changes[at].items():
            change.setdefault(key, event)
        at = forest.bases[at]
    return change
