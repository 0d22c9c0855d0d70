"""Gaps that ``synrepl tail`` cannot fill from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.tokens import Range, Token

Key = tuple[str, str]

#: How long rows may take that a POSITION was ahead of, in seconds.
AHEAD_S = 2.0


@dataclass(slots=True)
class _Gap:
    """A range that was announced and did not come."""

    span: Range
    timer: DelayedCall


class UnfilledGaps:
    """Tells of each gap, but for rows that come after all: real servers announce them ahead.

    :param say: tells a person, in a sentence
    """

    def __init__(self, scheduler: Scheduler, say: Callable[[str], object]) -> None:
        self._scheduler = scheduler
        self._say = say
        self._open: dict[Key, _Gap] = {}

    def opened(self, key: Key, span: Range) -> None:
        """A POSITION is ahead of what was received."""
        gap = self._open.get(key)
        if gap is None:
            timer = self._scheduler.callLater(AHEAD_S, self._expired, key)
            self._open[key] = _Gap(span, timer)
        else:
            gap.span = Range(gap.span.after, span.upto)

    def row(self, key: Key, token: Token) -> None:
        """A row came."""
        gap = self._open.pop(key, None)
        if gap is None:
            return
        gap.timer.cancel()
        self._tell(key, Range(gap.span.after, min(token - 1, gap.span.upto)))

    def connection_lost(self) -> None:
        """Nothing more comes."""
        for key, gap in list(self._open.items()):
            gap.timer.cancel()
            self._tell(key, gap.span)
        self._open.clear()

    def _expired(self, key: Key) -> None:
        self._tell(key, self._open.pop(key).span)

    def _tell(self, key: Key, span: Range) -> None:
        stream, writer = key
        if not span.empty:
            self._say(
                f"missed: {stream} of {writer}, above {span.after} up to {span.upto};"
                " it could be fetched with a configuration (-c) that has the stream"
                " and the master's HTTP listener"
            )
