"""The rules of one recorded connection, or of one server's channels on Redis.

Source of the rule on silence: ``docs/protocol.md``, "A connection", 2. The recorder itself may be
late, so the time that a side sends in its PING takes precedence over the time of the recording.
"""

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
    GIVEN_UP,
    GREETING,
    LAST_WORD,
    LENGTH,
    NO_GOODBYE,
    ROW,
    SILENCE,
    TO_ALL,
    UNASKED,
    RuleFinding,
)
from synrepl.tools.judge.track import StreamTraits, WriterTrack
from synrepl.wire import commands as c
from synrepl.wire.codec import WrongSide, is_blank, parse_line
from synrepl.wire.commands import Command, Error, Ping
from synrepl.wire.dialects import LEGACY, Dialect, Side
from synrepl.wire.errors import RemoteProtocolError
from synrepl.wire.heartbeat import PING_TIMEOUT
from synrepl.wire.lines import DEFAULT_LINE_LIMIT

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


#: Maximum number of (stream, writer) pairs, requested streams and REMOTE_SERVER_UP names that
#: are kept per connection.
MOST_TRACKS = 100_000
_MOST_REQUESTED = 1_000
_MOST_SERVERS = 1_000

_ANSWER_MS = 30_000
_ECHO_MS = 1_000
_EVERYTHING = "ALL"
#: This many consecutive POSITIONs without news are an answer to another client.
_MIN_REPEATED_POSITIONS = 3
_FALLEN_BEHIND_TEXTS = ("has fallen behind", " as too long ")


class TooManyTracks(InputError):
    """more than {most} writers of streams on one connection: such a recording cannot be judged"""


class ConnectionJudge:
    """Judges one connection or, on Redis, everything that one server's processes publish.

    :param opened: whether the recording contains the beginning of the connection
    """

    def __init__(self, dialect: Dialect, traits: StreamTraits, opened: bool) -> None:
        self._dialect = dialect
        self._traits = traits
        self._opened = opened
        self._tracks: dict[tuple[str, str | None], WriterTrack] = {}
        self._silence = SilenceDetector()
        self._bus = BusJudge()
        self._server_lines = 0
        self._closed_sides: set[Side] = set()
        #: Unanswered requests: stream ("" for all, of a modern client) -> time in ms, and line.
        self._pending_requests: dict[str, tuple[int, int]] = {}
        #: The streams that a legacy client has requested.
        self._subscribed: set[str] = set()
        #: The token of a legacy client's request for all streams.
        self._all_after: Token | None = None
        self._requests = 0  # number of REPLICATE commands
        self._reported_unrequested_rows = False
        self._repeated_positions = 0
        #: Servers in REMOTE_SERVER_UP of the client -> time in ms.
        self._servers_up: dict[str, int] = {}

    def line_sent(self, side: Side, line: bytes, at_ms: int, number: int) -> Iterator[RuleFinding]:
        """Judge a line.

        :raises TooManyTracks: it cannot be judged in bounded memory
        """
        if is_blank(line):
            return
        if self._dialect.has_sides and len(line) > DEFAULT_LINE_LIMIT:
            yield RuleFinding(LENGTH, number, f"{len(line)} bytes")
        if side in self._closed_sides:
            yield RuleFinding(LAST_WORD, number, f"{side.value}: {_excerpt(line)}")
        command: c.Command | None = None
        try:
            command = parse_line(line, self._dialect, side)
        except WrongSide as error:
            yield RuleFinding(DIRECTION, number, str(error))
        except RemoteProtocolError as error:
            yield RuleFinding(FORMAT, number, str(error))
        if self._dialect.has_sides:
            yield from self._silence.line_sent(side, command, at_ms, number)
            yield from self._greeting(side, command, number)
        yield from self._overdue_requests(at_ms)
        if command is not None:
            yield from self._command(side, command, at_ms, number)

    def published(
        self, channel: str, line: bytes, at_ms: int, number: int
    ) -> Iterator[RuleFinding]:
        """Judge a line that was published on Redis.

        :raises TooManyTracks: it cannot be judged in bounded memory
        """
        yield from self._bus.published(channel, line, at_ms, number)
        # Redis has no server and client sides: every process may publish every command.
        yield from self.line_sent(Side.SERVER, line, at_ms, number)

    def side_closed(self, side: Side, number: int) -> Iterator[RuleFinding]:
        """Judge the state in which one side has closed its end."""
        if side is Side.SERVER and not self._closed_sides:
            yield RuleFinding(NO_GOODBYE, number, "the server went without a word")
        if side is Side.SERVER:
            for (stream, _), track in self._tracks.items():
                if track.open_batch_line is not None:
                    yield RuleFinding(
                        BATCH, number, f"{stream}: that of line {track.open_batch_line} has no end"
                    )
                    track.open_batch_line = None
        self._closed_sides.add(side)

    def end(self) -> Iterator[RuleFinding]:
        """End the connection or the recording."""
        yield from self._silence.end()

    def _greeting(
        self, side: Side, command: c.Command | None, number: int
    ) -> Iterator[RuleFinding]:
        if side is not Side.SERVER or not self._opened:
            return
        self._server_lines += 1
        nth = self._server_lines
        expected = {1: c.Server, 2: c.Ping}.get(nth)
        if expected is not None and not isinstance(command, expected):
            yield RuleFinding(GREETING, number, f"line {nth} of the server is not {expected.verb}")
        elif nth > 1 and isinstance(command, c.Server):
            yield RuleFinding(GREETING, number, "SERVER again")

    def _command(
        self, side: Side, command: c.Command, at_ms: int, number: int
    ) -> Iterator[RuleFinding]:
        if isinstance(command, c.Rdata):
            yield from self._row(command, at_ms, number)
        elif isinstance(command, c.Position):
            yield from self._position(command, number)
        elif isinstance(command, c.Replicate):
            self._replicate(command, at_ms, number)
        elif isinstance(command, c.Error):
            yield from self._error(side, command, number)
        elif isinstance(command, c.RemoteServerUp) and self._dialect.has_sides:
            yield from self._server_up(side, command.server, at_ms, number)

    def _row(self, rdata: c.Rdata, at_ms: int, number: int) -> Iterator[RuleFinding]:
        self._repeated_positions = 0
        try:
            jsons.decode(rdata.row, f"a row of {rdata.stream}")
        except jsons.BadJson as error:
            yield RuleFinding(ROW, number, str(error))
        yield from self._check_requested(rdata.stream, number)
        track = self._track(rdata.stream, rdata.writer)
        yield from track.row(rdata, number)
        yield from self._bus.row_sent(track, rdata, at_ms, number, self._requests)

    def _position(self, position: c.Position, number: int) -> Iterator[RuleFinding]:
        stream = position.stream
        for requested in ("", _EVERYTHING, stream):
            self._pending_requests.pop(requested, None)
        yield from self._check_requested(stream, number)
        track = self._track(stream, position.writer)
        track.answered_requests = self._requests
        yield from self._unrequested_positions(position, track, number)
        yield from track.position(position, number)

    def _unrequested_positions(
        self, position: c.Position, track: WriterTrack, number: int
    ) -> Iterator[RuleFinding]:
        """Find POSITIONs without news that nobody on this connection has requested."""
        if not self._dialect.has_sides or self._dialect is LEGACY:
            return
        first = track.requests_at_position < self._requests
        track.requests_at_position = self._requests
        before = track.last if position.prev is None else position.prev
        is_repeated = not first and position.new == before
        self._repeated_positions = self._repeated_positions + 1 if is_repeated else 0
        if self._repeated_positions == _MIN_REPEATED_POSITIONS:
            yield RuleFinding(TO_ALL, number, "POSITIONs that nobody here asked for")

    def _check_requested(self, stream: str, number: int) -> Iterator[RuleFinding]:
        if not self._opened or not self._dialect.has_sides:
            return
        if self._dialect is LEGACY:
            if not self._subscribed & {stream, _EVERYTHING}:
                yield RuleFinding(UNASKED, number, stream)
        elif not self._requests and not self._reported_unrequested_rows:
            self._reported_unrequested_rows = True  # reported once: all later rows are like this
            yield RuleFinding(TO_ALL, number, f"{stream}, before REPLICATE")

    def _replicate(self, command: c.Replicate, at_ms: int, number: int) -> None:
        self._requests += 1
        if not self._dialect.has_sides:
            self._bus.replicate_sent(at_ms, number)
        stream = command.stream or ""
        if len(self._pending_requests) < _MOST_REQUESTED:
            self._pending_requests[stream] = at_ms, number
        if self._dialect is not LEGACY:
            return
        if len(self._subscribed) < _MOST_REQUESTED:
            self._subscribed.add(stream)
        if stream == _EVERYTHING:
            self._all_after = command.token
            for track in self._tracks.values():
                track.catch_up_requested(command.token)
        else:
            self._track(stream, None).catch_up_requested(command.token)

    def _overdue_requests(self, at_ms: int) -> Iterator[RuleFinding]:
        for stream, (since, number) in list(self._pending_requests.items()):
            if at_ms - since > _ANSWER_MS:
                del self._pending_requests[stream]
                yield RuleFinding(ANSWER, number, f"REPLICATE {stream}".rstrip())

    def _error(self, side: Side, error: c.Error, number: int) -> Iterator[RuleFinding]:
        self._closed_sides.add(side)
        self._pending_requests.clear()
        has_fallen_behind = any(words in error.text for words in _FALLEN_BEHIND_TEXTS)
        if has_fallen_behind and side is Side.SERVER and self._dialect is LEGACY:
            yield RuleFinding(FALLEN_BEHIND, number, error.text[:200])

    def _server_up(self, side: Side, server: str, at_ms: int, number: int) -> Iterator[RuleFinding]:
        if side is Side.CLIENT:
            if len(self._servers_up) >= _MOST_SERVERS:
                self._servers_up.pop(next(iter(self._servers_up)))
            self._servers_up[server] = at_ms
        elif server in self._servers_up and at_ms - self._servers_up.pop(server) <= _ECHO_MS:
            yield RuleFinding(ECHO, number, server)

    def _track(self, stream: str, writer: str | None) -> WriterTrack:
        track = self._tracks.get((stream, writer))
        if track is None:
            if len(self._tracks) >= MOST_TRACKS:
                raise TooManyTracks(most=MOST_TRACKS)
            track = WriterTrack(stream, self._traits, not self._dialect.has_sides)
            self._tracks[stream, writer] = track
            if _EVERYTHING in self._subscribed:
                track.catch_up_requested(self._all_after)
        return track


def _excerpt(line: bytes) -> str:
    return line[:60].decode(errors="replace")
