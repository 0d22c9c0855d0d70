"""Which files of a table are worth joining.

Joining all small files whenever some have been landed would write what was landed first again
and again: with n landings some n² of it. So files are joined by *tiers*, as log-structured
stores do: only when what comes out has a tier above that of everything that goes in, a tier
having :data:`GROWTH` times the rows of the one below. Then a row is written once per tier,
O(n log n) in all, and between two large files there are fewer than ``GROWTH`` small ones a tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from synrepl.pipeline.lake.data_files import DataFile

#: How many times the rows of one tier the next has.
GROWTH = 4

_Group = list[DataFile]


def plan_compaction(files: Iterable[DataFile], target: int, *, full: bool = False) -> list[_Group]:
    """The groups of files to be joined, each of two or more neighbours by stream ID.

    Files of half the target and more are left alone, and nothing is joined across them.

    :param target: how many bytes files should have; a group has less than twice that
    :param full: join all small files, whatever that costs next time
    """
    found: list[_Group] = []
    ordered = sorted(files, key=lambda file: (file.low, file.high, file.name))
    for small, run in groupby(ordered, key=lambda file: file.size < target / 2):
        if small:
            for group in [list(run)] if full else _tiers(list(run)):
                found += (part for part in _cut(group, target) if len(part) > 1)
    return found


def _tiers(run: Sequence[DataFile]) -> list[_Group]:
    """Neighbours that make up a tier above their own, together."""
    groups = [[file] for file in run]
    for tier in range(_tier(_rows(run)) + 1):
        groups = list(_joined(groups, tier))
    return groups


def _joined(groups: Iterable[_Group], tier: int) -> Iterator[_Group]:
    for low, run in groupby(groups, key=lambda group: _tier(_rows(group)) <= tier):
        together = list(run)
        whole = [file for group in together for file in group]
        if low and _tier(_rows(whole)) > tier:
            yield whole
        else:
            yield from together


def _tier(rows: int) -> int:
    tier = 0
    while rows >= GROWTH:
        rows //= GROWTH
        tier += 1
    return tier


def _rows(files: Iterable[DataFile]) -> int:
    # In rows, not in bytes: joining makes fewer bytes of small files, never fewer rows.
    return sum(file.rows for file in files)


def _cut(group: Sequence[DataFile], target: int) -> list[_Group]:
    """Parts of at least the target's size; what is left over goes with the last."""
    parts: list[_Group] = [[]]
    size = 0
    for file in group:
        if size >= target:
            parts.append([])
            size = 0
        parts[-1].append(file)
        size += file.size
    if len(parts) > 1 and size < target / 2:
        rest = parts.pop()
        parts[-1] += rest
    return parts
