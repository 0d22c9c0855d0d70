"""Plans how the state groups of a room are stored in few rows, with short chains.

Along a path of ``n`` groups where each changes one entry, a chain takes ``n`` rows, but its length is the
number of groups to read for one. Allow ``r`` levels: a group refers to the one before it, or to one further back,
up to ``r`` times as far. How many groups can be reached in at most ``h`` steps with ``r`` levels is
``C(h + r, r)``, and each level costs about one row a group. That is the best that can be done
(:func:`reach`), because the groups behind a group that took ``k`` steps to reach only get the ``h - k`` steps
that are left. Levels of fixed sizes, as other tools use them, waste the difference: three levels of 100, 50 and 25
reach 125,000 groups in 175 steps; ``C(h + 3, 3)`` does so in 90.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb

from synrepl.pipeline.rooms.group_forest import ROOT, Entries, GroupForest

#: Maximum number of further groups to read for one.
MAX_HOPS = 100

#: Maximum number of levels that are tried.
_LEVELS = 4


def reach(hops: int, levels: int) -> int:
    """The number of groups, with the first, that can be reached in so many steps."""
    return comb(hops + levels, levels)


def base_on_path(position: int, hops: int, levels: int) -> tuple[int, int]:
    """The base of the group at a position of a path, and how many steps it is from the first.

    :param position: at least 1, and less than :func:`reach`
    """
    at = base = steps = 0
    left = hops
    while at < position:
        # What is behind ``at`` is reached with one level less, until the next group of this level.
        inner = reach(left, levels - 1)
        if position < at + inner:
            levels -= 1
        else:
            base, at = at, at + inner
            left -= 1
            steps += 1
    return base, steps


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


def plan_groups(forest: GroupForest, max_hops: int = MAX_HOPS) -> GroupPlan:
    """Plan the groups of a room.

    The longest path of the forest is planned first, then the longest that branches off, and so on. A
    branch begins at the closest group below it that leaves steps enough.
    """
    size = len(forest)
    plan = GroupPlan([ROOT] * size, [{}] * size, [0] * size)
    for path in _paths(forest):
        _plan_path(forest, plan, path, max_hops)
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


def _plan_path(forest: GroupForest, plan: GroupPlan, path: list[int], max_hops: int) -> None:
    start = forest.bases[path[0]]
    if start == ROOT:
        nodes = path
        spare = max_hops
        plan.changes[path[0]] = forest.changes[path[0]]
    else:
        below = _start(plan, start, len(path), max_hops)
        nodes = [below, *path]
        spare = max_hops - plan.hops[below]
    options = [
        _option(forest, nodes, spare, levels)
        for levels in range(1, _LEVELS + 1)
        if levels == 1 or reach(spare, levels - 1) < len(nodes)
    ]
    _, bases, changes, hops = min(options, key=lambda option: option[0])
    first = plan.hops[nodes[0]]
    for place, base, change, steps in zip(nodes[1:], bases, changes, hops, strict=True):
        plan.bases[place], plan.changes[place] = base, change
        plan.hops[place] = steps if base == ROOT else steps
    del first
