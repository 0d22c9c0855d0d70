"""What was heard of each writer, by somebody who only listens."""

from __future__ import annotations

from collections.abc import Iterable

from synrepl.core.clock import Clock
from synrepl.core.tokens import Token
from synrepl.services.following.source import LINEAR
from synrepl.services.waiting.position_waiters import Key
from synrepl.wire.commands import Command, Position, Rdata

#: Pairs of stream and writer that are kept account of; a server has some hundred at most.
MAX_KEYS = 10_000

#: Characters in the name of a stream and its writer together; real ones have some dozen.
MAX_NAMES = 255


class Heard:
    """Positions and rows by (stream, writer); the writer is "" in the legacy dialect.

    :ivar positions: the furthest that was heard; a POSITION may set it back
    :ivar rows: how many came
    :ivar at: when something came last, in seconds
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.positions: dict[Key, Token] = {}
        self.rows: dict[Key, int] = {}
        self.at: dict[Key, float] = {}

    def received(self, commands: Iterable[Command]) -> None:
        """Take note."""
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

    def _at(self, key: Key, token: Token, now: float) -> None:
        if key not in self.positions:
            if len(self.positions) >= MAX_KEYS or sum(map(len, key)) > MAX_NAMES:
                return
            self.rows[key] = 0
        self.positions[key] = token
        self.at[key] = now
