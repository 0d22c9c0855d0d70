"""Checks that both sides of a recorded connection send often enough.

Source: ``docs/protocol.md``, "A connection", 2. A recorder may be late itself,
so what a side says of its own time (in PING) goes before when it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.tools.judge.rules import GIVEN_UP, SILENCE, RuleFinding
from synrepl.wire.commands import Command, Error, Ping
from synrepl.wire.dialects import Side
from synrepl.wire.heartbeat import PING_TIMEOUT

_LONGEST_MS = int(PING_TIMEOUT * 1000)

#: How much later a PING may have been recorded than it says, in ms.
_LATE_MS = 120_000

#: How long after a silence its end by time-out may come, in ms.
_PATIENCE_MS = 30_000

_TIMEOUT_TEXT = "ping timeout"


class Silence:
    """When each side of one connection spoke last. All times are in ms since the epoch.

    A silence is held until it is known whether the connection ended by it.
    """

    def __init__(self) -> None:
        self._spoke: dict[Side, int] = {}
        self._pings: set[Side] = set()
        self._held: dict[Side, tuple[int, RuleFinding]] = {}
        self._over = False

    def said(
        self, side: Side, command: Command | None, at_ms: int, line: int
    ) -> Iterator[RuleFinding]:
        """Take a line; None for one that could not be read."""
        own = _own_time(command, at_ms)
        if not self._over:
            self._look(side, own, at_ms, line)
            self._look(side.other, own, at_ms, line)
        self._spoke[side] = max(own, self._spoke.get(side, own))
        if isinstance(command, Error):
            self._over = True
            if command.text.startswith(_TIMEOUT_TEXT):
                yield from (held._replace(rule=GIVEN_UP) for _, held in self._held.values())
                self._held.clear()
        elif isinstance(command, Ping):
            self._pings.add(side)
        yield from self._settle(at_ms)

    def ended(self) -> Iterator[RuleFinding]:
        """The connection, or the recording, is over."""
        yield from (held for _, held in self._held.values())
        self._held.clear()

    def _look(self, side: Side, now: int, at_ms: int, line: int) -> None:
        if side not in self._pings:
            return
        silent = now - self._spoke[side]
        if silent > _LONGEST_MS:
            detail = f"{side.value}: nothing for {silent / 1000:.1f} s"
            # Told where it showed first, and how long it was in the end.
            first = self._held[side][1].line if side in self._held else line
            self._held[side] = at_ms, RuleFinding(SILENCE, first, detail)

    def _settle(self, at_ms: int) -> Iterator[RuleFinding]:
        for side, (since, held) in list(self._held.items()):
            if at_ms - since > _PATIENCE_MS:
                del self._held[side]
                yield held


def _own_time(command: Command | None, at_ms: int) -> int:
    if isinstance(command, Ping) and command.text.isascii() and command.text.isdigit():
        said = int(command.text[:19])
        if at_ms - _LATE_MS <= said <= at_ms:
            return said
    return at_ms
