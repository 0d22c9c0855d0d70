"""Checks that both sides of a recorded connection send often enough.

Source: ``docs/protocol.md``, "A connection", 2. The recorder itself may be late, so the time
that a side sends in its PING takes precedence over the time of the recording.
"""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.tools.judge.rules import GIVEN_UP, SILENCE, RuleFinding
from synrepl.wire.commands import Command, Error, Ping
from synrepl.wire.dialects import Side
from synrepl.wire.heartbeat import PING_TIMEOUT

_LONGEST_MS = int(PING_TIMEOUT * 1000)

#: Maximum delay between the time in a PING and its recording, in ms.
_MAX_DELAY_MS = 120_000

#: Maximum time after a silence at which the connection can still be closed because of it, in ms.
_TIMEOUT_WINDOW_MS = 30_000

_TIMEOUT_TEXT = "ping timeout"


class SilenceDetector:
    """Finds silences of either side of one connection. All times are in ms since the epoch.

    A silence is not reported before it is known whether the connection was closed because of it.
    """

    def __init__(self) -> None:
        self._last_sent: dict[Side, int] = {}
        self._pings: set[Side] = set()
        self._pending: dict[Side, tuple[int, RuleFinding]] = {}
        self._has_ended = False

    def line_sent(
        self, side: Side, command: Command | None, at_ms: int, line: int
    ) -> Iterator[RuleFinding]:
        """Register a line; its command is None if it could not be parsed."""
        sent_at = _sender_time(command, at_ms)
        if not self._has_ended:
            self._check(side, sent_at, at_ms, line)
            self._check(side.other, sent_at, at_ms, line)
        self._last_sent[side] = max(sent_at, self._last_sent.get(side, sent_at))
        if isinstance(command, Error):
            self._has_ended = True
            if command.text.startswith(_TIMEOUT_TEXT):
                yield from (
                    finding._replace(rule=GIVEN_UP) for _, finding in self._pending.values()
                )
                self._pending.clear()
        elif isinstance(command, Ping):
            self._pings.add(side)
        yield from self._overdue(at_ms)

    def end(self) -> Iterator[RuleFinding]:
        """End the connection or the recording."""
        yield from (finding for _, finding in self._pending.values())
        self._pending.clear()

    def _check(self, side: Side, now: int, at_ms: int, line: int) -> None:
        if side not in self._pings:
            return
        silent = now - self._last_sent[side]
        if silent > _LONGEST_MS:
            detail = f"{side.value}: nothing for {silent / 1000:.1f} s"
            # Reported with its first line and its final length.
            first = self._pending[side][1].line if side in self._pending else line
            self._pending[side] = at_ms, RuleFinding(SILENCE, first, detail)

    def _overdue(self, at_ms: int) -> Iterator[RuleFinding]:
        for side, (since, finding) in list(self._pending.items()):
            if at_ms - since > _TIMEOUT_WINDOW_MS:
                del self._pending[side]
                yield finding


def _sender_time(command: Command | None, at_ms: int) -> int:
    if isinstance(command, Ping) and command.text.isascii() and command.text.isdigit():
        sent = int(command.text[:19])
        if at_ms - _MAX_DELAY_MS <= sent <= at_ms:
            return sent
    return at_ms
