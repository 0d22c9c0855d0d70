"""Ranges of tokens, cut into chunks of about one size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from synrepl.core.tokens import Range
from synrepl.pipeline.plan.windows import Windows

#: At most so many parts of one range, whatever the statistics say: each is a task.
MAX_PARTS = 1024


def split(
    windows: Windows, wanted: int, rows: Callable[[Windows], int]
) -> Iterator[tuple[Windows, int]]:
    """Cut in halves until each part has no more than ``wanted`` rows.

    Halves of the *tokens*: where they are dense, more cuts are made. A part that the
    statistics are wrong about is slower than it should be, never wrong.

    :param rows: about how many rows are in a part
    :returns: the parts in order, with about how many rows each has
    """
    waiting = [(windows, rows(windows))]
    parts = 1
    while waiting:
        part, expected = waiting.pop()
        width = part.clip.upto - part.clip.after
        if expected <= wanted or width <= 1 or parts >= MAX_PARTS:
            yield part, expected
            continue
        # Evenly into as many as there should be, rather than in two, saves asking.
        pieces = min(_pieces(expected, wanted), width, MAX_PARTS - parts + 1)
        edges = [part.clip.after + width * n // pieces for n in range(pieces + 1)]
        halves = [
            part.within(Range(after, upto))
            for after, upto in itertools.pairwise(edges)
            if upto > after
        ]
        parts += len(halves) - 1
        waiting += [(half, rows(half)) for half in reversed(halves)]


def _pieces(expected: int, wanted: int) -> int:
    return min(-(-expected // wanted), 16)
