"""Tracks the positions that each writer has announced.

On Redis every process answers every REPLICATE. A process that has announced something before and
does not answer is not running, or hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from synrepl.core.clock import Clock
from synrepl.core.tokens import Token
from synrepl.services.sources import LINEAR, Key
from synrepl.wire.commands import Command, Position, Rdata, Replicate

#: Maximum number of (stream, writer) pairs; a server has a few hundred at most.
MAX_KEYS = 10_000

#: Maximum length of the names of a stream and its writer together; real ones have a few dozen
#: characters.
MAX_NAMES = 255


class Announcements:
    """Positions and rows by (stream, writer); the writer is "" in the legacy dialect.

    :ivar positions: the highest positions announced; a POSITION may set them back
    :ivar rows: number of rows received
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.positions: dict[Key, Token] = {}
        self.rows: dict[Key, int] = {}
        self._last_received: dict[str, float] = {}  # by writer, in seconds
        self._unanswered: dict[str, float] = {}  # by writer, time of its first unanswered request
        self._requested_at: float | None = None

    @property
    def unanswered(self) -> Mapping[str, float]:
        """By writer, for how many seconds it has not answered REPLICATE."""
        now = self._clock.seconds()
        return {writer: now - requested_at for writer, requested_at in self._unanswered.items()}

    def has_silent_writer(self, seconds: float) -> bool:
        """Whether a writer was silent for this long, and no REPLICATE was sent in this time."""
        limit = self._clock.seconds() - seconds
        if self._requested_at is not None and self._requested_at > limit:
            return False
        return any(at <= limit for at in self._last_received.values())

    def streams_of(self, writer: str) -> list[str]:
        """The streams that a writer has announced."""
        return sorted(stream for stream, other in self.positions if other == writer)

    def disconnected(self) -> None:
        """Forget pending requests, because their answers may be lost with the connection."""
        self._unanswered.clear()
        self._requested_at = None

    def received(self, commands: Iterable[Command]) -> None:
        """Process received commands."""
        now = self._clock.seconds()
        for command in commands:
            if isinstance(command, Rdata):
                key = (command.stream, command.writer or LINEAR)
                # Real servers send some streams' rows in any order; rows with "batch" have no token.
                self._advance(key, max(command.token or 0, self.positions.get(key, 0)), now)
                if key in self.rows:
                    self.rows[key] += 1
            elif isinstance(command, Position):
                self._advance((command.stream, command.writer or LINEAR), command.new, now)
            elif isinstance(command, Replicate):
                self._requested_at = now
                for writer in self._last_received:
                    self._unanswered.setdefault(writer, now)

    def _advance(self, key: Key, token: Token, now: float) -> None:
        if key not in self.positions:
            if len(self.positions) >= MAX_KEYS or sum(map(len, key)) > MAX_NAMES:
                return
            self.rows[key] = 0
        self.positions[key] = token
        self._last_received[key[1]] = now
        self._unanswered.pop(key[1], None)
