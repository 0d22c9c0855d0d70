"""Replays a recording on Redis, where any process may ask for positions at any time."""

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

#: Writers of streams that are kept account of; a server has some hundred at most.
MOST_WRITERS = 10_000


class ReplayPositions:
    """The positions that a replay has reached, for followers that come late."""

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


#: Publishes lines on a channel at once; returns when Redis has taken them, False when it
#: never will.
Say = Callable[[str, Sequence[bytes]], Awaitable[bool]]


class ChannelInUse(Refused):
    """somebody speaks on the channel {channel} already: whoever listens there would take the recording for what happens now; replay it on a Redis of its own, or under another --server-name"""


class BusReplay:
    """Waits for the first REPLICATE, replays, and answers later ones with the current positions.

    :param channel: the server's main channel
    :param begun: whether to begin without a REPLICATE
    """

    def __init__(self, scheduler: Scheduler, channel: str, say: Say, begun: bool) -> None:
        self._scheduler = scheduler
        self._channel = channel
        self._say = say
        self._begun = begun
        self._beginning: Promise[None] = scheduler.promise()
        self._played = ReplayPositions()
        self._over = False
        self._asked = False
        self._answering = False

    def heard(self, messages: Sequence[bytes]) -> None:
        """Messages on the channel, our own among them."""
        asked = any(message.rstrip() == b"REPLICATE" for message in messages)
        if self._begun:
            self._asked = self._asked or asked
            self._answer()
        elif any(message.startswith(b"RDATA ") for message in messages):
            self._begun = True
            self._beginning.errback(ChannelInUse(channel=self._channel))
        elif asked:
            self._begun = True
            self._beginning.callback(None)

    async def play(self, part: Iterable[PlaybackLine], speed: float) -> int:
        """Play it to its end; how many lines were taken.

        :raises ChannelInUse: before anybody asked
        """
        if not self._begun:
            await self._beginning
        count = await replay(self._scheduler, part, speed, self._send)
        self._over = True
        self._answer()
        return count

    async def _send(self, burst: Burst) -> bool:
        for line in burst.lines:
            self._played.take(line)
        taken = await self._say(burst.channel or self._channel, burst.lines)
        self._answer()
        return taken

    def _answer(self) -> None:
        """Answer who has asked, all at once, unless that has to wait."""
        if self._asked and not self._answering and (self._over or not self._played.amid_batch):
            self._asked, self._answering = False, True
            self._scheduler.spawn("tell positions", self._tell())

    async def _tell(self) -> None:
        try:
            await self._say(self._channel, self._played.positions())
        finally:
            self._answering = False
        self._answer()
