"""Tracks what each writer has announced.

On Redis every process answers a REPLICATE, whoever sent it. A process that was received from
before and does not answer is not running, or hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from synrepl.core.clock import Clock
from synrepl.core.tokens import Token
from synrepl.services.sources import LINEAR, Key
from synrepl.wire.commands import Command, Position, Rdata, Replicate

#: Maximum number of (stream, writer) pairs; a server has a few hundred at most.
MAX_KEYS = 10_000

#: Characters in the name of a stream and its writer together; real ones have some dozen.
MAX_NAMES = 255


class Announcements:
    """Positions and rows by (stream, writer); the writer is "" in the legacy dialect.

    :ivar positions: the furthest that was heard; a POSITION may set it back
    :ivar rows: how many came
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.positions: dict[Key, Token] = {}
        self.rows: dict[Key, int] = {}
        self._spoke: dict[str, float] = {}  # by writer, when it was last heard
        self._unanswered: dict[str, float] = {}  # by writer, when it was asked first since
        self._asked_at: float | None = None

    @property
    def unanswered(self) -> Mapping[str, float]:
        """By writer that owes an answer to REPLICATE, for how many seconds."""
        now = self._clock.seconds()
        return {writer: now - asked for writer, asked in self._unanswered.items()}

    def quiet(self, seconds: float) -> bool:
        """Whether some writer was not heard for so long, and nobody asked meanwhile."""
        long_ago = self._clock.seconds() - seconds
        if self._asked_at is not None and self._asked_at > long_ago:
            return False
        return any(at <= long_ago for at in self._spoke.values())

    def streams_of(self, writer: str) -> list[str]:
        """What a writer was heard to write."""
        return sorted(stream for stream, who in self.positions if who == writer)

    def lost(self) -> None:
        """The connection is gone: answers may be lost with it."""
        self._unanswered.clear()
        self._asked_at = None

    def received(self, commands: Iterable[Command]) -> None:
        """Process received commands."""
        now = self._clock.seconds()
        for command in commands:
            if isinstance(command, Rdata):
                key = (command.stream, command.writer or LINEAR)
                # Real servers send some streams' rows in any order; and "batch" is no token.
                self._at(key, max(command.token or 0, self.positions.get(key, 0)), now)
                if key in self.rows:
                    self.rows[key] += 1
            elif isinstance(command, Position):
                self._at((command.stream, command.writer or LINEAR), command.new, now)
            elif isinstance(command, Replicate):
                self._asked_at = now
                for writer in self._spoke:
                    self._unanswered.setdefault(writer, now)

    def _at(self, key: Key, token: Token, now: float) -> None:
        if key not in self.positions:
            if len(self.positions) >= MAX_KEYS or sum(map(len, key)) > MAX_NAMES:
                return
            self.rows[key] = 0
        self.positions[key] = token
        self._spoke[key[1]] = now
        self._unanswered.pop(key[1], None)
