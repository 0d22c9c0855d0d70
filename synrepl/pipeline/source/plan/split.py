"""Ranges of tokens, cut into chunks of about one size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from synrepl.core.tokens import Range
from synrepl.pipeline.source.plan.windows import Windows

#: At most so many parts of one range, whatever the statistics say: each is a task.
MAX_PARTS = 1024


def split(
    windows: Windows,
    wanted: int,
    rows: Callable[[Windows], int],
    occupied: Callable[[Range], Range],
) -> Iterator[tuple[Windows, int]]:
    """Cut until each part has no more than ``wanted`` rows.

    Evenly by *tokens*: where they are dense, more cuts are made. Where there are none, as in the
    gap that a failover of the database leaves, no part is made: the next one begins where the
    last one ends, so that together they are always the whole. A part that the statistics are
    wrong about is slower than it should be, never wrong.

    :param rows: about how many rows are in a part
    :param occupied: the tokens of a range between the first and the last that have rows
    :returns: the parts in order, at least one, with about how many rows each has
    """
    spans = list(_occupied_spans(windows, wanted, rows, occupied)) or [(windows.clip, 0)]
    after = windows.clip.after
    for number, (span, expected) in enumerate(spans, 1):
        upto = span.upto if number < len(spans) else windows.clip.upto
        yield windows.within(Range(after, upto)), expected
        after = upto


def _occupied_spans(
    windows: Windows,
    wanted: int,
    rows: Callable[[Windows], int],
    occupied: Callable[[Range], Range],
) -> Iterator[tuple[Range, int]]:
    """Ranges that have rows, in order, with about how many each has."""
    waiting = [windows.clip]
    parts = 1
    while waiting:
        span = occupied(waiting.pop())
        if span.empty:
            parts -= 1
            continue
        expected = rows(windows.within(span))
        width = span.upto - span.after
        if expected <= wanted or width <= 1 or parts >= MAX_PARTS:
            yield span, expected
            continue
        # Evenly into as many as there should be, rather than in two, saves asking.
        pieces = min(_pieces(expected, wanted), width, MAX_PARTS - parts + 1)
        edges = [span.after + width * n // pieces for n in range(pieces + 1)]
        cut = [Range(after, upto) for after, upto in itertools.pairwise(edges) if upto > after]
        parts += len(cut) - 1
        waiting += reversed(cut)


def _pieces(expected: int, wanted: int) -> int:
    return min(-(-expected // wanted), 16)
