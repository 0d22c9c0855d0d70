"""The rules of one recorded connection, or of one server's channels on Redis."""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.core.tokens import Token
from synrepl.tools.judge.bus import BusJudge
from synrepl.tools.judge.rules import (
    ANSWER,
    BATCH,
    DIRECTION,
    ECHO,
    FALLEN_BEHIND,
    FORMAT,
    GREETING,
    LAST_WORD,
    LENGTH,
    NO_GOODBYE,
    ROW,
    TO_ALL,
    UNASKED,
    RuleFinding,
)
from synrepl.tools.judge.silence import Silence
from synrepl.tools.judge.track import StreamTraits, WriterTrack
from synrepl.wire import commands as c
from synrepl.wire.codec import WrongSide, is_blank, parse_line
from synrepl.wire.dialects import LEGACY, Dialect, Side
from synrepl.wire.errors import RemoteProtocolError
from synrepl.wire.lines import DEFAULT_LINE_LIMIT

#: What one connection may have of: (stream, writer) pairs, streams asked for, servers that are up.
MOST_TRACKS = 100_000
_MOST_ASKED = 1_000
_MOST_SERVERS = 1_000

_ANSWER_MS = 30_000
_ECHO_MS = 1_000
_EVERYTHING = "ALL"
#: POSITIONs one after another that tell nothing new: so many are an answer, to somebody else.
_A_ROUND = 3
_HOPELESS = ("has fallen behind", " as too long ")


class TooManyTracks(InputError):
    """more than {most} writers of streams on one connection: such a recording cannot be judged"""


class ConnectionJudge:
    """One connection; of Redis, everything that one server's processes publish.

    :param opened: the recording has its beginning
    """

    def __init__(self, dialect: Dialect, traits: StreamTraits, opened: bool) -> None:
        self._dialect = dialect
        self._traits = traits
        self._opened = opened
        self._tracks: dict[tuple[str, str | None], WriterTrack] = {}
        self._silence = Silence()
        self._bus = BusJudge()
        self._lines_of_server = 0
        self._gone: set[Side] = set()
        #: Stream ("" for all, of a modern client) -> when it was asked for, and in which line.
        self._asking: dict[str, tuple[int, int]] = {}
        #: What a legacy client has asked for, and from where when that was everything.
        self._subscribed: set[str] = set()
        self._all_after: Token | None = None
        self._round = 0  # how often the client has asked
        self._told_of_rows = False
        self._restated = 0
        self._up: dict[str, int] = {}

    def said(self, side: Side, line: bytes, at_ms: int, number: int) -> Iterator[RuleFinding]:
        """Take a line.

        :raises TooManyTracks: it cannot be judged in bounded memory
        """
        if is_blank(line):
            return
        if self._dialect.has_sides and len(line) > DEFAULT_LINE_LIMIT:
            yield RuleFinding(LENGTH, number, f"{len(line)} bytes")
        if side in self._gone:
            yield RuleFinding(LAST_WORD, number, f"{side.value}: {_shown(line)}")
        command: c.Command | None = None
        try:
            command = parse_line(line, self._dialect, side)
        except WrongSide as error:
            yield RuleFinding(DIRECTION, number, str(error))
        except RemoteProtocolError as error:
            yield RuleFinding(FORMAT, number, str(error))
        if self._dialect.has_sides:
            yield from self._silence.said(side, command, at_ms, number)
            yield from self._greeting(side, command, number)
        yield from self._unanswered(at_ms)
        if command is not None:
            yield from self._take(side, command, at_ms, number)

    def published(
        self, channel: str, line: bytes, at_ms: int, number: int
    ) -> Iterator[RuleFinding]:
        """Take a line that was published on Redis.

        :raises TooManyTracks: it cannot be judged in bounded memory
        """
        yield from self._bus.published(channel, line, at_ms, number)
        # Nobody is a server or a client there; either may say everything.
        yield from self.said(Side.SERVER, line, at_ms, number)

    def hung_up(self, side: Side, number: int) -> Iterator[RuleFinding]:
        """One side has closed its end."""
        if side is Side.SERVER and not self._gone:
            yield RuleFinding(NO_GOODBYE, number, "the server went without a word")
        if side is Side.SERVER:
            for (stream, _), track in self._tracks.items():
                if track.half is not None:
                    yield RuleFinding(
                        BATCH, number, f"{stream}: that of line {track.half} has no end"
                    )
                    track.half = None
        self._gone.add(side)

    def ended(self) -> Iterator[RuleFinding]:
        """The connection, or the recording, is over."""
        yield from self._silence.ended()

    # -- how it is done -----------------------------------------------------------------------

    def _greeting(
        self, side: Side, command: c.Command | None, number: int
    ) -> Iterator[RuleFinding]:
        if side is not Side.SERVER or not self._opened:
            return
        self._lines_of_server += 1
        nth = self._lines_of_server
        due = {1: c.Server, 2: c.Ping}.get(nth)
        if due is not None and not isinstance(command, due):
            yield RuleFinding(GREETING, number, f"line {nth} of the server is not {due.verb}")
        elif nth > 1 and isinstance(command, c.Server):
            yield RuleFinding(GREETING, number, "SERVER again")

    def _take(
        self, side: Side, command: c.Command, at_ms: int, number: int
    ) -> Iterator[RuleFinding]:
        if isinstance(command, c.Rdata):
            yield from self._row(command, at_ms, number)
        elif isinstance(command, c.Position):
            yield from self._position(command, number)
        elif isinstance(command, c.Replicate):
            self._ask(command, at_ms, number)
        elif isinstance(command, c.Error):
            yield from self._error(side, command, number)
        elif isinstance(command, c.RemoteServerUp) and self._dialect.has_sides:
            yield from self._server_up(side, command.server, at_ms, number)

    def _row(self, rdata: c.Rdata, at_ms: int, number: int) -> Iterator[RuleFinding]:
        self._restated = 0
        try:
            jsons.decode(rdata.row, f"a row of {rdata.stream}")
        except jsons.BadJson as error:
            yield RuleFinding(ROW, number, str(error))
        yield from self._wanted(rdata.stream, number)
        track = self._track(rdata.stream, rdata.writer)
        yield from track.row(rdata, number)
        yield from self._bus.spoke(track, rdata, at_ms, number, self._round)

    def _position(self, position: c.Position, number: int) -> Iterator[RuleFinding]:
        stream = position.stream
        for asked in ("", _EVERYTHING, stream):
            self._asking.pop(asked, None)
        yield from self._wanted(stream, number)
        track = self._track(stream, position.writer)
        track.answered = self._round
        yield from self._told_to_others(position, track, number)
        yield from track.position(position, number)

    def _told_to_others(
        self, position: c.Position, track: WriterTrack, number: int
    ) -> Iterator[RuleFinding]:
        """POSITIONs that tell nothing new, and that nobody on this connection asked for."""
        if not self._dialect.has_sides or self._dialect is LEGACY:
            return
        first = track.announced < self._round
        track.announced = self._round
        before = track.last if position.prev is None else position.prev
        again = not first and position.new == before
        self._restated = self._restated + 1 if again else 0
        if self._restated == _A_ROUND:
            yield RuleFinding(TO_ALL, number, "POSITIONs that nobody here asked for")

    def _wanted(self, stream: str, number: int) -> Iterator[RuleFinding]:
        if not self._opened or not self._dialect.has_sides:
            return
        if self._dialect is LEGACY:
            if not self._subscribed & {stream, _EVERYTHING}:
                yield RuleFinding(UNASKED, number, stream)
        elif not self._round and not self._told_of_rows:
            self._told_of_rows = True  # once is enough: it goes on like this
            yield RuleFinding(TO_ALL, number, f"{stream}, before REPLICATE")

    def _ask(self, command: c.Replicate, at_ms: int, number: int) -> None:
        self._round += 1
        if not self._dialect.has_sides:
            self._bus.asked(at_ms, number)
        stream = command.stream or ""
        if len(self._asking) < _MOST_ASKED:
            self._asking[stream] = at_ms, number
        if self._dialect is not LEGACY:
            return
        if len(self._subscribed) < _MOST_ASKED:
            self._subscribed.add(stream)
        if stream == _EVERYTHING:
            self._all_after = command.token
            for track in self._tracks.values():
                track.asked(command.token)
        else:
            self._track(stream, None).asked(command.token)

    def _unanswered(self, at_ms: int) -> Iterator[RuleFinding]:
        for stream, (since, number) in list(self._asking.items()):
            if at_ms - since > _ANSWER_MS:
                del self._asking[stream]
                yield RuleFinding(ANSWER, number, f"REPLICATE {stream}".rstrip())

    def _error(self, side: Side, error: c.Error, number: int) -> Iterator[RuleFinding]:
        self._gone.add(side)
        self._asking.clear()
        hopeless = any(words in error.text for words in _HOPELESS)
        if hopeless and side is Side.SERVER and self._dialect is LEGACY:
            yield RuleFinding(FALLEN_BEHIND, number, error.text[:200])

    def _server_up(self, side: Side, server: str, at_ms: int, number: int) -> Iterator[RuleFinding]:
        if side is Side.CLIENT:
            if len(self._up) >= _MOST_SERVERS:
                self._up.pop(next(iter(self._up)))
            self._up[server] = at_ms
        elif server in self._up and at_ms - self._up.pop(server) <= _ECHO_MS:
            yield RuleFinding(ECHO, number, server)

    def _track(self, stream: str, writer: str | None) -> WriterTrack:
        track = self._tracks.get((stream, writer))
        if track is None:
            if len(self._tracks) >= MOST_TRACKS:
                raise TooManyTracks(most=MOST_TRACKS)
            track = WriterTrack(stream, self._traits, not self._dialect.has_sides)
            self._tracks[stream, writer] = track
            if _EVERYTHING in self._subscribed:
                track.asked(self._all_after)
        return track


def _shown(line: bytes) -> str:
    return line[:60].decode(errors="replace")
