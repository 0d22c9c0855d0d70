"""Position marks: past positions of a stream with their times, from which the age of its rows follows.

Rows have no timestamp. A *mark* is a recorded linear position with the time at which
it was first seen: everything at or below it is at least as old. A stream that does not
move needs no new marks.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.storage.store import AgedPositions

#: Resolution of the two ages: the distance of marks is this fraction of the age.
_PARTS_OF_KEEP = 10
_PARTS_OF_MAX = 100


class PositionMark(NamedTuple):
    """The linear position at a time.

    :ivar at: time at which it was first seen, in seconds of one clock
    """

    at: float
    token: Token


def add_mark(
    marks: Iterable[PositionMark], now: float, position: Token, keep_s: float, max_s: float
) -> list[PositionMark]:
    """Thin out the marks, and add one for now if the position has moved far enough.

    At most about two hundred are kept: those within ``keep_s`` are close together, of
    older ones a hundred are left, and beyond ``max_s`` one.

    :param position: the recorded linear position
    :returns: the marks to store, oldest first
    """
    spacing_s = max_s / _PARTS_OF_MAX
    young_spacing_s = min(keep_s / _PARTS_OF_KEEP, spacing_s) if keep_s else spacing_s
    newest: dict[tuple[bool, float], PositionMark] = {}
    for mark in sorted(marks):
        young = now - mark.at < keep_s
        newest[young, mark.at if young else mark.at // spacing_s] = mark
    kept = list(newest.values())
    while len(kept) > 1 and now - kept[1].at >= max_s:
        del kept[0]
    last = kept[-1] if kept else PositionMark(-inf, 0)
    if position > last.token and now - last.at >= young_spacing_s:
        kept.append(PositionMark(now, position))
    return kept


def aged_positions(
    marks: Iterable[PositionMark], now: float, position: Token, keep_s: float, max_s: float
) -> AgedPositions:
    """The positions ``keep_s`` and ``max_s`` seconds ago, as far as the marks show."""
    known = list(marks)

    def at_least(age_s: float) -> Token:
        return max((mark.token for mark in known if now - mark.at >= age_s), default=0)

    return AgedPositions(
        past_keep=at_least(keep_s) if keep_s else position, past_max=at_least(max_s)
    )
