"""Connections to a server whose commands are pulled by the reader, rows undecoded.

For ``synrepl tail``, ``watch`` and ``tap``.
:class:`synrepl.services.following.follower.Follower` does not fit, because it needs the streams'
declarations and decodes their rows. ``ReconnectingClientFactory`` does not fit either. Commands are
pulled, so that a slow reader slows the server down. The next connection may need another dialect,
at once. The first failure may be final. A host name may have only IPv6 addresses, which endpoints
try.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.error import ConnectError, DNSLookupError

from synrepl.adapters.tcp.line_peer import LinePeer
from synrepl.cli.terminal import printable
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused, SynreplError, Unavailable
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Token
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Replicate
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.session import ProtocolSession, SessionLimits

#: Commands that may be queued before reading from the connection is paused.
HIGH_WATER = 20_000

#: The longest line that is accepted, in bytes; far above what servers send.
LINE_LIMIT = 16 * 2**20

#: Close reasons after which a new connection may succeed.
_TRANSIENT = frozenset(
    {CloseReason.PEER_CLOSED, CloseReason.PING_TIMEOUT, CloseReason.FAILED_TO_KEEP_UP}
)
#: Beginnings of ERROR texts after which a new connection may succeed; real servers send them, too.
_TRANSIENT_ERRORS = ("server shutting down", "Failed to keep up", "ping timeout")


class NoMaster(Unavailable):
    """cannot connect to {where}: {reason}"""


class MasterRefuses(Refused):
    """the master at {where} says: {text}"""


class ConnectionRefused(Refused):
    """the connection to {where} was given up: {reason}"""


class RawUpstream(Protocol):
    """A connection that rows are received from, over TCP or Redis."""

    @property
    def address(self) -> str:
        """The address of the other side, for people."""

    @property
    def has_greeted(self) -> bool:
        """Whether the other side has identified itself as a server."""

    def send(self, command: Command) -> None:
        """Send a command."""

    async def commands(self) -> list[Command]:
        """Wait for commands and return all that are queued; empty once the connection is closed."""

    def close(self, reason: CloseReason) -> None:
        """Close the connection."""

    @property
    def reason(self) -> str:
        """Why the connection was closed, for people."""

    def refusal(self) -> SynreplError | None:
        """The error that a new connection would meet again; None if it may succeed."""


class CommandInbox:
    """A queue of received commands that applies back-pressure to the connection.

    :param pause: stops reading from the connection
    :param resume: starts reading again
    :ivar ended: whether the connection is closed, so that nothing more is queued
    """

    def __init__(self, pause: Callable[[], object], resume: Callable[[], object]) -> None:
        self._pause = pause
        self._resume = resume
        self._commands: list[Command] = []
        self._paused = False
        self._reader_waiting: Deferred[None] | None = None
        self.ended = False

    async def take(self) -> list[Command]:
        """Wait for a command and return all that are queued; empty once the connection is closed."""
        if not self._commands and not self.ended:
            self._reader_waiting = Deferred()
            await self._reader_waiting
        taken, self._commands = self._commands, []
        if self._paused and not self.ended:
            self._paused = False
            self._resume()
        return taken

    def put(self, commands: Sequence[Command]) -> None:
        """Queue commands; pause the connection above :data:`HIGH_WATER`."""
        self._commands += commands
        if len(self._commands) > HIGH_WATER and not self._paused:
            self._paused = True
            self._pause()
        if self._commands:
            self._wake()

    def end(self) -> None:
        """Record that the connection is closed; queued commands can still be taken."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        reader, self._reader_waiting = self._reader_waiting, None
        if reader is not None:
            reader.callback(None)


class RawPeer(LinePeer):
    """The client's end of a TCP connection to a server.

    :ivar requested_dialect: the dialect that the client was configured to speak; the session's may be
        narrower
    """

    def __init__(
        self, scheduler: Scheduler, session: ProtocolSession, requested_dialect: Dialect
    ) -> None:
        super().__init__(scheduler, session)
        self.requested_dialect = requested_dialect
        self._inbox = CommandInbox(self.pause_reading, self.resume_reading)
        self._waiting_for_end: list[Deferred[None]] = []

    @property
    def has_greeted(self) -> bool:
        """As :attr:`RawUpstream.has_greeted`: the SERVER command was received."""
        return self.session.peer_server is not None

    @property
    def reason(self) -> str:
        """As :attr:`RawUpstream.reason`."""
        session = self.session
        return printable(str(session.peer_error or session.fault or "the server closed it"))

    def refusal(self) -> SynreplError | None:
        """As :meth:`RawUpstream.refusal`."""
        session = self.session
        if session.peer_error is not None:
            if self.reason.startswith(_TRANSIENT_ERRORS):
                return None
            return MasterRefuses(where=self.address, text=self.reason)
        if session.closed_reason not in _TRANSIENT:
            return ConnectionRefused(where=self.address, reason=self.reason)
        return None

    async def wait_closed(self) -> None:
        """Wait until the connection is closed and its session has ended."""
        if not self._inbox.ended:
            end: Deferred[None] = Deferred()
            self._waiting_for_end.append(end)
            await end

    async def commands(self) -> list[Command]:
        """As :meth:`RawUpstream.commands`."""
        return await self._inbox.take()

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Queue commands; reading pauses while too many are queued."""
        self._inbox.put(commands)

    def session_ended(self, reason: CloseReason) -> None:
        """Wake up the reader and everyone who waits for the end."""
        self._inbox.end()
        for end in self._waiting_for_end:
            end.callback(None)


def ask_for_all(dialect: Dialect, token: Token | None = None) -> Replicate:
    """Return the REPLICATE command that subscribes to all streams.

    :param token: where to start, in the legacy dialect; None for new rows only
    """
    return Replicate() if dialect.per_writer else Replicate("ALL", token)


async def connect(
    reactor: Any,
    scheduler: Scheduler,
    host: str,
    port: int,
    dialect: Dialect,
    server_name: str | None,
) -> RawPeer:
    """Connect to a master, without retries.

    :param server_name: the server name that the master must have; None accepts any
    :raises NoMaster: the connection cannot be made
    """
    session = ProtocolSession(
        Side.CLIENT,
        server_name=server_name,
        name="synrepl-tail",
        dialect=dialect,
        now=scheduler.seconds(),
        limits=SessionLimits(line=LINE_LIMIT),
    )
    return await connect_peer(reactor, host, port, RawPeer(scheduler, session, dialect))


async def connect_peer(reactor: Any, host: str, port: int, peer: RawPeer) -> RawPeer:
    """Connect a peer.

    :raises NoMaster: the connection cannot be made
    """
    endpoint = HostnameEndpoint(reactor, host, port)
    try:
        await connectProtocol(endpoint, peer)
    except (ConnectError, DNSLookupError, OSError) as error:
        raise NoMaster(where=f"{host}:{port}", reason=str(error).rstrip(".")) from None
    return peer


U = TypeVar("U", bound=RawUpstream)
U_contra = TypeVar("U_contra", bound=RawUpstream, contravariant=True)


class RawListener(Protocol[U_contra]):
    """Receives commands and connection events; an exception from any method ends :meth:`RawFollower.run`."""

    def unreachable(self, error: NoMaster) -> None:
        """A connection attempt failed; another one follows."""

    def connected(self, upstream: U_contra) -> None:
        """A connection was made: subscribe."""

    async def received(self, upstream: U_contra, commands: Sequence[Command]) -> bool:
        """Process commands, while reading pauses; return False to stop following."""

    def disconnected(self) -> None:
        """The connection was closed, for any reason."""

    def dialect_understood(self, upstream: U_contra) -> bool:
        """Whether the server understood the dialect of the connection that was lost.

        If not, the next connection uses the next dialect.
        """


class RawFollower(Generic[U]):
    """Follows a server, and reconnects when the connection is lost.

    :param connect: connects in a dialect; raises :class:`NoMaster`
    :param dialects: tried in turn until the server understands one; back-off starts after the last
    """

    def __init__(
        self,
        scheduler: Scheduler,
        connect: Callable[[Dialect], Awaitable[U]],
        dialects: Sequence[Dialect],
        back_off: BackOff,
        listener: RawListener[U],
    ) -> None:
        self._scheduler = scheduler
        self._connect = connect
        self._dialects = tuple(dialects)
        self._back_off = back_off
        self._listener = listener

    async def run(self) -> None:
        """Follow until the listener returns False."""
        retry = Retry(self._back_off, self._scheduler.random)
        dialects = cycle(self._dialects)
        dialect = next(dialects)
        while True:
            try:
                upstream = await self._connect(dialect)
            except NoMaster as error:  # says nothing about the dialect
                self._listener.unreachable(error)
            else:
                if not await self._follow(upstream):
                    return
                if self._listener.dialect_understood(upstream):
                    retry.succeeded()
                else:
                    refused, dialect = dialect, next(dialects)
                    if refused is not self._dialects[-1]:
                        continue
            await self._scheduler.sleep(retry.failed())

    async def _follow(self, upstream: U) -> bool:
        """Follow over one connection; False when the listener has stopped following."""
        try:
            self._listener.connected(upstream)
            while commands := await upstream.commands():
                if not await self._listener.received(upstream, commands):
                    return False
            return True
        finally:
            upstream.close(CloseReason.LOCAL)
            self._listener.disconnected()
