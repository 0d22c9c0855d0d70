"""How far a replay is, in words that a late follower understands."""

from __future__ import annotations

from synrepl.core.tokens import Token
from synrepl.wire.codec import parse_line, write_line
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialects import CURRENT, Side
from synrepl.wire.errors import RemoteProtocolError

#: Writers of streams that are kept account of; a server has some hundred at most.
MOST_WRITERS = 10_000


class Played:
    """The positions that a replay has gone through."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str | None], Token] = {}
        self._half: set[tuple[str, str | None]] = set()

    @property
    def amid_batch(self) -> bool:
        """True while a batch has no end yet; a POSITION would make followers drop it."""
        return bool(self._half)

    def take(self, line: bytes) -> None:
        """A line is being played, whatever it is."""
        try:
            command = parse_line(line, CURRENT, Side.SERVER)
        except RemoteProtocolError:
            return
        if isinstance(command, Rdata):
            key = command.stream, command.writer
            if command.token is not None:
                self._half.discard(key)
                # Real servers send some streams' rows in any order.
                self._at(key, max(command.token, self._positions.get(key, 0)))
            elif len(self._half) < MOST_WRITERS:
                self._half.add(key)
        elif isinstance(command, Position):
            key = command.stream, command.writer
            self._half.discard(key)
            self._at(key, command.new)

    def positions(self) -> list[bytes]:
        """A POSITION for each writer of each stream, where it stands now."""
        return [
            write_line(Position(stream, writer, token, token), CURRENT)
            for (stream, writer), token in self._positions.items()
        ]

    def _at(self, key: tuple[str, str | None], token: Token) -> None:
        if key in self._positions or len(self._positions) < MOST_WRITERS:
            self._positions[key] = token
