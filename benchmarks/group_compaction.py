"""Compaction of state groups: the rows that are left, against those of levels of fixed lengths, and its rate.

The groups are stored first as a Synapse stores them: as entries over the group before, whole after a hundred of these, and whole where
an entry was removed. The other side of the comparison is how the public compressor places groups: three levels of 100, 50 and 25
groups, where a group refers to the newest of the lowest level that is not full.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from time import process_time

from benchmarks.harness import Row, Scale, at_least, at_most
from benchmarks.room_shapes.histories import WORKLOADS, History, history_of
from synrepl.pipeline.rooms.groups.digests import state_sums, stored_sums
from synrepl.pipeline.rooms.groups.forest import ROOT, Entries, ForestBuilder, GroupForest
from synrepl.pipeline.rooms.groups.plan import MAX_HOPS, plan_groups

#: A Synapse stores a group whole after so many.
_HOPS = 100

_LEVELS = (100, 50, 25)

#: The public compressor's best for the linear room, of the rows that were stored.
_BEST = 0.037


class _Hashes(dict[tuple[int, int], int]):
    def __missing__(self, entry: tuple[int, int]) -> int:
        found = blake2b(b"%d %d" % entry, digest_size=16).digest()
        self[entry] = int.from_bytes(found, "big")
        return self[entry]


def run(scale: Scale) -> Iterator[Row]:
    """Compact each kind of room."""
    for name, steps in WORKLOADS.items():
        history = history_of(name, steps(scale.factor))
        hashes = _Hashes()
        builder = ForestBuilder(hashes)
        rows, adding = 0, 0.0
        for number, prev, entries in _stored(history):
            rows += len(entries)
            begun = process_time()
            builder.add(number, prev, entries)
            adding += process_time() - begun
        begun = process_time()
        forest = builder.finish()
        before = stored_sums(forest, hashes)
        plan = plan_groups(forest)
        if state_sums(plan.bases, plan.changes, hashes) != before:
            raise AssertionError("the plan changes states")
        seconds = adding + process_time() - begun
        is_linear = name == "linear"
        yield Row(
            f"{name}: rows that are left",
            plan.rows / rows,
            "× those stored",
            at_most(_BEST) if is_linear and scale.factor == 1 else None,
            detail=f"{plan.rows:,} of {rows:,}; {len(forest):,} groups, longest chain {max(plan.hops)}",
            numbers={"rows": rows, "left": plan.rows},
        )
        yield Row(
            f"{name}: rate",
            rows / seconds,
            "rows a second of CPU",
            at_least(100_000) if is_linear else None,
            detail=f"{len(forest) / seconds:,.0f} groups a second, digests of both forms included",
        )
        if is_linear:
            yield from _against_levels(forest)


def _against_levels(forest: GroupForest) -> Iterator[Row]:
    levels = _rows_in_levels(forest)
    for hops in (sum(_LEVELS), MAX_HOPS):
        rows = plan_groups(forest, hops).rows
        yield Row(
            f"linear: rows with at most {hops} hops",
            rows / levels,
            "× levels of 100, 50, 25",
            at_most(1.0),
            detail=f"{rows:,} against {levels:,}, which takes up to {sum(_LEVELS)} hops",
        )


def _rows_in_levels(forest: GroupForest) -> int:
    """The rows of a linear room whose groups are placed in levels of fixed lengths."""
    heads: list[int] = []
    lengths = [0] * len(_LEVELS)
    rows = 0
    for place in range(len(forest)):
        free = next((at for at, most in enumerate(_LEVELS) if heads and lengths[at] < most), None)
        if free is None:
            heads, lengths, base = [place] * len(_LEVELS), [1] * len(_LEVELS), ROOT
        else:
            base = heads[free]
            lengths[free] += 1
            lengths[:free] = [1] * free
            heads[: free + 1] = [place] * (free + 1)
        rows += len(_change(forest, place, base))
    return rows


def _change(forest: GroupForest, place: int, base: int) -> Entries:
    change: Entries = {}
    while place != base:
        for key, event in forest.changes[place].items():
            change.setdefault(key, event)
        place = forest.bases[place]
    return change


def _stored(history: History) -> Iterator[tuple[int, int | None, Entries]]:
    """The groups as a Synapse stores them."""
    hops: dict[int, int] = {}
    for group in history.groups:
        prev = group.parents[0] if group.parents else None
        change = {key: event for key, event in group.change.items() if event is not None}
        if prev is None or len(change) < len(group.change) or hops[prev] >= _HOPS:
            hops[group.number] = 0
            yield group.number, None, history.state(group.number)
        else:
            hops[group.number] = hops[prev] + 1
            yield group.number, prev, change
