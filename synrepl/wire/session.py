"""The protocol of one connection, without I/O: bytes in, commands out.

A :class:`ProtocolSession` has neither a socket nor a clock. Its owner passes in bytes
and the time, writes the result of :meth:`ProtocolSession.data_to_send` after each call,
calls :meth:`ProtocolSession.tick` at :attr:`ProtocolSession.next_tick`, and closes the
transport once :attr:`ProtocolSession.closing` is true and the data is written.

=========  =====================  ==============================================
phase      becomes                by
=========  =====================  ==============================================
new        open                   ``start``
open       closing                ``close``; a fault of the peer; its silence
open       closed                 ``connection_lost``
closing    closed                 ``connection_lost``
=========  =====================  ==============================================

Faults of the peer close the session and are never raised. Mistakes of our own
caller are raised (:class:`LocalProtocolError`) and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from synrepl.wire.closing import (
    CloseReason,
    FailedToKeepUp,
    NeverSpoke,
    PingTimeout,
    WrongRemote,
    reason_and_text,
)
from synrepl.wire.codec import (
    is_blank,
    may_send,
    parse_line,
    quick_rdata,
    sends_rdata,
    write_line,
)
from synrepl.wire.commands import Command, Error, Name, Ping, Position, Replicate, Server
from synrepl.wire.dialects import (
    LEGACY,
    MODERN,
    TRANSITIONAL,
    TRANSITIONAL_OR_MODERN,
    Dialect,
    Side,
    opening,
)
from synrepl.wire.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire.heartbeat import (
    FIRST_LINE_TIMEOUT,
    PING_INTERVAL,
    PING_TIMEOUT,
    Heartbeat,
    HeartbeatAction,
)
from synrepl.wire.lines import DEFAULT_LINE_LIMIT, LineChunk, LineSplitter, LineTooLong, check_limit


class NotStarted(LocalProtocolError):
    """the session has not been started: call start() before anything else, and once"""


class NotOursToSend(LocalProtocolError):
    """{verb} is not for the {side} to send in the {dialect} dialect"""


class DialectUnknown(LocalProtocolError):
    """{verb} cannot be written yet: the client's first REPLICATE will tell its dialect"""


class NoDialect(LocalProtocolError):
    """a client's session needs a dialect: legacy, or one that asks with a bare REPLICATE"""


class LineTooLongToSend(LocalProtocolError):
    """a line of {length} bytes cannot be sent: the peer takes {limit} at most;
    announce a long row by POSITION, so that it is fetched"""


class SessionPhase(Enum):
    """The state of a session."""

    NEW = "new"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_NEXT: Mapping[SessionPhase, frozenset[SessionPhase]] = {
    SessionPhase.NEW: frozenset({SessionPhase.OPEN, SessionPhase.CLOSED}),
    SessionPhase.OPEN: frozenset({SessionPhase.CLOSING, SessionPhase.CLOSED}),
    SessionPhase.CLOSING: frozenset({SessionPhase.CLOSED}),
    SessionPhase.CLOSED: frozenset(),
}

_LONGEST_PEER_NAME = 200
_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of a session.

    :ivar line: longest line accepted, in bytes without the newline
    :ivar peer_line: longest line the peer accepts, likewise
    :ivar queued_lines: maximum number of lines queued while the transport is paused;
        beyond it the peer has failed to keep up
    :ivar ping_interval: seconds without sending after which a PING is sent
    :ivar ping_timeout: seconds of silence after which the peer times out
    :ivar first_line_timeout: likewise, before the peer's first line
    """

    line: int = DEFAULT_LINE_LIMIT
    peer_line: int = DEFAULT_LINE_LIMIT
    queued_lines: int = 10_000
    ping_interval: float = PING_INTERVAL
    ping_timeout: float = PING_TIMEOUT
    first_line_timeout: float = FIRST_LINE_TIMEOUT


class ProtocolSession:
    """The protocol of one connection. All times are in seconds since the epoch.

    :param side: the end of the connection that this is
    :param server_name: a server's own name; for a client, the name it expects, or
        ``None`` to accept any
    :param name: a client's name for the server's logs; ``None`` sends no NAME
    :param dialect: required for a client; :data:`~.dialects.TRANSITIONAL_OR_MODERN` is
        resolved by the server's first POSITION. A server's ``None`` is resolved by the
        client's first REPLICATE
    :param modern: the dialect that a REPLICATE without arguments selects
    :raises NoDialect: a client has none
    """

    def __init__(
        self,
        side: Side,
        *,
        server_name: str | None,
        name: str | None = None,
        dialect: Dialect | None = None,
        now: float,
        modern: Dialect = MODERN,
        limits: SessionLimits = SessionLimits(),
    ) -> None:
        if dialect is None and side is Side.CLIENT:
            raise NoDialect()
        self._side = side
        self._server_name = server_name
        self._name = name
        self._modern = modern
        self.limits = limits
        self._splitter = LineSplitter(limits.line)
        self._peer_line = check_limit(limits.peer_line)
        self._heartbeat = Heartbeat(
            now, limits.ping_interval, limits.ping_timeout, limits.first_line_timeout
        )
        self._started_at = now
        self._understood = dialect or opening(modern)
        self._queue: list[bytes] = []
        self._queued_since = now
        self._phase = SessionPhase.NEW
        #: True once nothing more is read; only the queued data is still written.
        self.closing = False
        #: The dialect of the connection; ``None`` until it is known.
        self.dialect = None if dialect is TRANSITIONAL_OR_MODERN else dialect
        #: Number of lines in :meth:`data_to_send`.
        self.queued_lines = 0
        #: Text of the peer's NAME (shortened), SERVER and last ERROR.
        self.peer_name: str | None = None
        self.peer_server: str | None = None
        self.peer_error: str | None = None
        #: The reason for closing, and the peer's fault if there was one.
        self.closed_reason: CloseReason | None = None
        self.fault: RemoteProtocolError | None = None

    @property
    def next_tick(self) -> float | None:
        """Time of the next :meth:`tick`; ``None`` for never."""
        return self._heartbeat.due if self._phase is SessionPhase.OPEN else None

    # -- sending ---------------------------------------------------------------------

    def start(self) -> None:
        """Queue the greeting (seed: TCP replication, 'Start up').

        :raises NotStarted: it was started before
        """
        if self._phase is not SessionPhase.NEW:
            raise NotStarted()
        greeting: list[Command] = []
        if self._side is Side.SERVER and self._server_name is not None:
            greeting.append(Server(self._server_name))
        if self._side is Side.CLIENT and self._name is not None:
            greeting.append(Name(self._name))
        greeting.append(_ping(self._started_at))
        lines = [self._line(command) for command in greeting]
        self._become(SessionPhase.OPEN)
        self._put(b"".join(lines), len(lines), self._started_at)

    def send(self, command: Command, now: float) -> bool:
        """Queue a command.

        :returns: False when the session is closing and the command was dropped
        :raises LocalProtocolError: it cannot be written, or may not be sent
        """
        self._check_started()
        line = self._line(command)
        return self._offer(line, 1, now)

    def send_chunk(self, data: bytes | LineChunk, now: float) -> bool:
        """Queue lines that are already encoded; a :class:`LineChunk` is not measured again.

        :param data: complete lines of this session's dialect, each with its newline
        :returns: False when the session is closing and they were dropped
        :raises LineTooLongToSend: the peer would not accept one of them
        """
        self._check_started()
        chunk = data if isinstance(data, LineChunk) else LineChunk.of(data)
        self._check_length(chunk.longest)
        return self._offer(chunk.data, chunk.lines, now)

    def data_to_send(self) -> bytes:
        """Take all queued data. Call it after every other call, unless the transport is paused."""
        data = b"".join(self._queue)  # a single chunk is returned as it is, not copied
        self._queue.clear()
        self.queued_lines = 0
        return data

    def close(self, reason: CloseReason = CloseReason.LOCAL, error_text: str | None = None) -> None:
        """End the session, after an ERROR line if there is a text. Later calls do nothing."""
        if self.closing:
            return
        if error_text is not None and self._phase is SessionPhase.OPEN:
            line = self._line_of(Error(_one_line(error_text)))
            self._put(line[: self._peer_line] + b"\n", 1, None)
        self.closed_reason = reason
        self._splitter.drop()
        self._become(
            SessionPhase.CLOSING if self._phase is SessionPhase.OPEN else SessionPhase.CLOSED
        )

    # -- receiving -------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Take bytes from the peer and return all commands that they complete.

        A fault closes the session: the commands before it are returned, everything
        after it is ignored.
        """
        if self._phase is SessionPhase.NEW:
            raise NotStarted()
        if self.closing:
            return []
        commands: list[Command] = []
        try:
            try:
                lines = self._splitter.feed(data)
            except LineTooLong as error:
                self._take_lines(list(error.before), commands, now)
                raise
            self._take_lines(lines, commands, now)
        except RemoteProtocolError as fault:
            self._fail(fault)
        return commands

    def connection_lost(self) -> int:
        """Note that the transport is closed, by either side.

        :returns: the number of dropped bytes of an unfinished line
        """
        if self.closed_reason is None:
            self.closed_reason = CloseReason.PEER_CLOSED
        self._become(SessionPhase.CLOSED)
        self._queue.clear()
        self.queued_lines = 0
        return self._splitter.drop()

    def not_reading(self, now: float) -> None:
        """Note that reading is paused, so the peer's silence does not count."""
        self._heartbeat.received(now)

    def tick(self, now: float) -> None:
        """Send a PING or time out a silent peer, if due. It may be called at any time."""
        if self._phase is not SessionPhase.OPEN:
            return
        action = self._heartbeat.check(now)
        if action is HeartbeatAction.GIVE_UP:
            self._fail(PingTimeout(seconds=self.limits.ping_timeout))
        elif action is HeartbeatAction.NEVER_SPOKE:
            self._fail(NeverSpoke(seconds=self.limits.first_line_timeout))
        elif action is HeartbeatAction.PING:
            self.send(_ping(now), now)

    def _take_lines(self, lines: list[bytes], commands: list[Command], now: float) -> None:
        if lines:
            self._heartbeat.line_received()
        before = len(commands)
        handlers, sender = _HANDLERS, self._side.other
        # A client receives mostly RDATA, which does not change the session.
        quick = sends_rdata(sender, self._understood)
        try:
            for line in lines:
                if quick and (rdata := quick_rdata(line, self._understood)) is not None:
                    commands.append(rdata)
                    continue
                if is_blank(line):
                    continue
                command = parse_line(line, self._understood, sender)
                handler = handlers.get(type(command))
                if handler is not None:
                    handler(self, command)
                commands.append(command)
        finally:
            if len(commands) > before:
                self._heartbeat.received(now)

    def _on_ping(self, command: Command) -> None:
        self._heartbeat.arm()

    def _on_server(self, command: Command) -> None:
        assert isinstance(command, Server)
        self.peer_server = command.name
        if self._server_name is not None and command.name != self._server_name:
            raise WrongRemote(found=command.name, expected=self._server_name)

    def _on_name(self, command: Command) -> None:
        assert isinstance(command, Name)
        self.peer_name = command.text[:_LONGEST_PEER_NAME]

    def _on_error(self, command: Command) -> None:
        assert isinstance(command, Error)
        self.peer_error = command.text

    def _on_replicate(self, command: Command) -> None:
        assert isinstance(command, Replicate)
        if self.dialect is None:
            self.dialect = self._modern if command.stream is None else LEGACY
            self._understood = self.dialect

    def _on_position(self, command: Command) -> None:
        assert isinstance(command, Position)
        if self.dialect is None:
            self.dialect = TRANSITIONAL if command.prev is None else MODERN
            self._understood = self.dialect

    # -- internals -------------------------------------------------------------------

    def _fail(self, fault: RemoteProtocolError) -> None:
        self.fault = fault
        self.close(*reason_and_text(fault))

    def _line(self, command: Command) -> bytes:
        line = self._line_of(command)
        self._check_length(len(line))
        return line + b"\n"

    def _line_of(self, command: Command) -> bytes:
        known = self._understood
        if not may_send(command, known, self._side):
            raise NotOursToSend(verb=command.verb, side=self._side.value, dialect=known.name)
        if self.dialect is None and len(known.layouts[command.verb.encode()]) > 1:
            raise DialectUnknown(verb=command.verb)
        return write_line(command, known)

    def _check_started(self) -> None:
        if self._phase is SessionPhase.NEW:
            raise NotStarted()

    def _check_length(self, length: int) -> None:
        if length > self._peer_line:
            raise LineTooLongToSend(length=length, limit=self._peer_line)

    def _offer(self, data: bytes, lines: int, now: float) -> bool:
        if self.closing:
            return False
        if self.queued_lines + lines > self.limits.queued_lines and self._queue:
            size, seconds = sum(map(len, self._queue)), now - self._queued_since
            self._fail(FailedToKeepUp(lines=self.queued_lines, size=size, seconds=seconds))
            return False
        self._put(data, lines, now)
        return True

    def _put(self, data: bytes, lines: int, now: float | None) -> None:
        if now is not None:
            self._heartbeat.sent(now)
            if not self._queue:
                self._queued_since = now
        self._queue.append(data)
        self.queued_lines += lines

    def _become(self, phase: SessionPhase) -> None:
        assert phase is self._phase or phase in _NEXT[self._phase], (self._phase, phase)
        self._phase = phase
        self.closing = phase in (SessionPhase.CLOSING, SessionPhase.CLOSED)


def _ping(now: float) -> Ping:
    return Ping(str(int(now * 1000)))


def _one_line(text: str) -> str:
    """Shorten to one ASCII line: an ERROR must get through whatever it quotes."""
    ascii_text = text.encode("ascii", errors="backslashreplace").decode()
    return " ".join(ascii_text.split())[:_LONGEST_ERROR]


_HANDLERS: Mapping[type[Command], Callable[[ProtocolSession, Command], None]] = {
    Ping: ProtocolSession._on_ping,
    Server: ProtocolSession._on_server,
    Name: ProtocolSession._on_name,
    Error: ProtocolSession._on_error,
    Position: ProtocolSession._on_position,
    Replicate: ProtocolSession._on_replicate,
}
