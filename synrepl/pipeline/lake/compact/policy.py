"""Selects the files of a table that are worth merging.

Merging all small files after each landing would rewrite the first rows again and again: some n² rows
in n landings. So files are merged by *tiers*, as in log-structured stores. A tier has :data:`GROWTH`
times the rows of the one below, and files are merged only if the result is in a higher tier than all
of them. Then a row is written once per tier, O(n log n) in total, and between two large files there
are fewer than ``GROWTH`` small files per tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from synrepl.pipeline.lake.data_files import DataFile

#: Ratio of the rows of neighbouring tiers.
GROWTH = 4

_Group = list[DataFile]


def plan_compaction(files: Iterable[DataFile], target: int, *, full: bool = False) -> list[_Group]:
    """The groups of files to merge, each of two or more neighbours by stream ID.

    Files of at least half the target stay as they are, and no group spans them.

    :param target: the target size of files, in bytes; a group has less than twice that
    :param full: merge all small files, regardless of tiers
    """
    found: list[_Group] = []
    ordered = sorted(files, key=lambda file: (file.low, file.high, file.name))
    for small, run in groupby(ordered, key=lambda file: file.size < target / 2):
        if small:
            for group in [list(run)] if full else _tiers(list(run)):
                found += (part for part in _cut(group, target) if len(part) > 1)
    return found


def _tiers(run: Sequence[DataFile]) -> list[_Group]:
    """Group neighbours that together reach a higher tier than their own."""
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
    # In rows, not in bytes: merging small files reduces their bytes, never their rows.
    return sum(file.rows for file in files)


def _cut(group: Sequence[DataFile], target: int) -> list[_Group]:
    """Cut a group into parts of at least the target size; a small rest goes to the last part."""
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
