"""Gaps that ``synrepl tail`` cannot fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.tokens import Range, Token

Key = tuple[str, str]

#: How long rows may arrive after a POSITION that is ahead of them, in seconds.
AHEAD_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Gap:
    """A range that was announced but not received."""

    span: Range
    timer: DelayedCall


class UnfilledGaps:
    """Reports gaps after a delay: real servers announce positions before they send the rows.

    :param notify: prints a sentence
    """

    def __init__(self, scheduler: Scheduler, notify: Callable[[str], object]) -> None:
        self._scheduler = scheduler
        self._notify = notify
        self._open: dict[Key, _Gap] = {}

    def opened(self, key: Key, span: Range) -> None:
        """Record that a POSITION is ahead of the rows received."""
        gap = self._open.get(key)
        if gap is None:
            timer = self._scheduler.callLater(AHEAD_TIMEOUT_S, self._expired, key)
            self._open[key] = _Gap(span, timer)
        else:
            gap.span = Range(gap.span.after, span.upto)

    def row(self, key: Key, token: Token) -> None:
        """Close the gap of a row's stream and writer; report what lies before the row."""
        gap = self._open.pop(key, None)
        if gap is None:
            return
        gap.timer.cancel()
        self._report(key, Range(gap.span.after, min(token - 1, gap.span.upto)))

    def connection_lost(self) -> None:
        """Report all open gaps: their rows will not arrive any more."""
        for key, gap in list(self._open.items()):
            gap.timer.cancel()
            self._report(key, gap.span)
        self._open.clear()

    def _expired(self, key: Key) -> None:
        self._report(key, self._open.pop(key).span)

    def _report(self, key: Key, span: Range) -> None:
        stream, writer = key
        if not span.empty:
            self._notify(
                f"missed: {stream} of {writer}, above {span.after} up to {span.upto};"
                " it could be fetched with a configuration (-c) that has the stream"
                " and the master's HTTP listener"
            )
