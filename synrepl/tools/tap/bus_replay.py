"""Replays a recording on Redis, where any process may request positions at any time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.tools.tap.replay import Burst, PlaybackLine, replay
from synrepl.wire.codec import parse_line, write_line
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialects import CURRENT, Side
from synrepl.wire.errors import RemoteProtocolError

#: Maximum number of (stream, writer) pairs whose positions are kept; a server has a few hundred.
MOST_WRITERS = 10_000


class ReplayPositions:
    """The positions that a replay has reached, for followers that connect late."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str | None], Token] = {}
        self._open_batches: set[tuple[str, str | None]] = set()

    @property
    def has_open_batch(self) -> bool:
        """Whether a batch is unfinished; a POSITION would make followers drop it."""
        return bool(self._open_batches)

    def line_played(self, line: bytes) -> None:
        """Register a line of any kind that is being played."""
        try:
            command = parse_line(line, CURRENT, Side.SERVER)
        except RemoteProtocolError:
            return
        if isinstance(command, Rdata):
            key = command.stream, command.writer
            if command.token is not None:
                self._open_batches.discard(key)
                # Real servers send some streams' rows in any order.
                self._advance(key, max(command.token, self._positions.get(key, 0)))
            elif len(self._open_batches) < MOST_WRITERS:
                self._open_batches.add(key)
        elif isinstance(command, Position):
            key = command.stream, command.writer
            self._open_batches.discard(key)
            self._advance(key, command.new)

    def positions(self) -> list[bytes]:
        """A POSITION line with the current position of each writer of each stream."""
        return [
            write_line(Position(stream, writer, token, token), CURRENT)
            for (stream, writer), token in self._positions.items()
        ]

    def _advance(self, key: tuple[str, str | None], token: Token) -> None:
        if key in self._positions or len(self._positions) < MOST_WRITERS:
            self._positions[key] = token


#: Publishes lines on a channel at once. Returns True once Redis has taken them, and False if the
#: connection is lost.
Publish = Callable[[str, Sequence[bytes]], Awaitable[bool]]


class ChannelInUse(Refused):
    """another process publishes on the channel {channel} already: subscribers would take the recording for live traffic; replay it on a Redis of its own, or under another --server-name"""


class BusReplay:
    """Waits for the first REPLICATE, replays, and answers later ones with the current positions.

    :param channel: the server's main channel
    :param publish: publishes lines on a channel
    :param begun: whether to begin without a REPLICATE
    """

    def __init__(self, scheduler: Scheduler, channel: str, publish: Publish, begun: bool) -> None:
        self._scheduler = scheduler
        self._channel = channel
        self._publish = publish
        self._begun = begun
        self._first_request: Promise[None] = scheduler.promise()
        self._positions = ReplayPositions()
        self._is_finished = False
        self._is_requested = False
        self._answering = False

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Process messages on the channel, including those of the replay itself."""
        is_requested = any(message.rstrip() == b"REPLICATE" for message in messages)
        if self._begun:
            self._is_requested = self._is_requested or is_requested
            self._answer()
        elif any(message.startswith(b"RDATA ") for message in messages):
            self._begun = True
            self._first_request.errback(ChannelInUse(channel=self._channel))
        elif is_requested:
            self._begun = True
            self._first_request.callback(None)

    async def play(self, lines: Iterable[PlaybackLine], speed: float) -> int:
        """Play lines until the end, and return how many were taken.

        :raises ChannelInUse: rows were published on the channel before the first REPLICATE
        """
        if not self._begun:
            await self._first_request
        count = await replay(self._scheduler, lines, speed, self._send)
        self._is_finished = True
        self._answer()
        return count

    async def _send(self, burst: Burst) -> bool:
        for line in burst.lines:
            self._positions.line_played(line)
        taken = await self._publish(burst.channel or self._channel, burst.lines)
        self._answer()
        return taken

    def _answer(self) -> None:
        """Answer all requests at once, unless the answer has to wait."""
        if (
            self._is_requested
            and not self._answering
            and (self._is_finished or not self._positions.has_open_batch)
        ):
            self._is_requested, self._answering = False, True
            self._scheduler.spawn("announce positions", self._announce_positions())

    async def _announce_positions(self) -> None:
        try:
            await self._publish(self._channel, self._positions.positions())
        finally:
            self._answering = False
        self._answer()
