"""A connection to a server whose commands are taken when somebody is ready for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from typing import Protocol as Interface

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.error import ConnectError, DNSLookupError

from synrepl.adapters.tcp.line_peer import LinePeer
from synrepl.cli.terminal import printable
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused, SynreplError, Unavailable
from synrepl.core.tokens import Token
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Replicate
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.session import ProtocolSession, SessionLimits

#: Commands that may wait before the master is asked to stop (by not reading on).
HIGH_WATER = 20_000

#: A row is shown whatever its length, within reason; in bytes.
LINE_LIMIT = 16 * 2**20


#: Ends of a connection after which another one helps.
_PASSING = frozenset(
    {CloseReason.PEER_CLOSED, CloseReason.PING_TIMEOUT, CloseReason.FAILED_TO_KEEP_UP}
)
#: The words of an ERROR after which another connection helps; real servers use them too.
_PASSING_ERRORS = ("server shutting down", "Failed to keep up", "ping timeout")


class NoMaster(Unavailable):
    """cannot connect to {where}: {reason}"""


class MasterRefuses(Refused):
    """the master at {where} says: {text}"""


class ConnectionRefused(Refused):
    """the connection to {where} was given up: {reason}"""


class RawUpstream(Interface):
    """A connection to whoever has the rows, whatever it goes over."""

    @property
    def address(self) -> str:
        """Where it goes."""

    @property
    def greeted(self) -> bool:
        """The other side has shown that it is what it should be."""

    def send(self, command: Command) -> None:
        """Say something."""

    async def commands(self) -> list[Command]:
        """What came since the last call, waiting for it; nothing once the connection is gone."""

    def close(self, reason: CloseReason) -> None:
        """Give it up."""

    @property
    def reason(self) -> str:
        """Why it is gone, for a person."""

    def refusal(self) -> SynreplError | None:
        """Why another connection would end in the same way; None when it may do better."""


class CommandInbox:
    """Commands until their reader takes them; too many of them stop the connection.

    :param pause: reads no more from the connection
    :param resume: reads again
    :ivar ended: nothing more comes
    """

    def __init__(self, pause: Callable[[], object], resume: Callable[[], object]) -> None:
        self._pause = pause
        self._resume = resume
        self._commands: list[Command] = []
        self._paused = False
        self._wanted: Deferred[None] | None = None
        self.ended = False

    async def take(self) -> list[Command]:
        """All there are, waiting for the first; none once the connection is over."""
        if not self._commands and not self.ended:
            self._wanted = Deferred()
            await self._wanted
        taken, self._commands = self._commands, []
        if self._paused and not self.ended:
            self._paused = False
            self._resume()
        return taken

    def put(self, commands: Sequence[Command]) -> None:
        """Add some; pause the connection above :data:`HIGH_WATER`."""
        self._commands += commands
        if len(self._commands) > HIGH_WATER and not self._paused:
            self._paused = True
            self._pause()
        if self._commands:
            self._wake()

    def end(self) -> None:
        """The connection is over; what came can still be taken."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            wanted.callback(None)


class RawPeer(LinePeer):
    """The client's end of a connection to a server.

    :ivar spoken: the dialect in which it is spoken to
    """

    def __init__(self, scheduler: Scheduler, session: ProtocolSession, spoken: Dialect) -> None:
        super().__init__(scheduler, session)
        self.spoken = spoken
        self._inbox = CommandInbox(self.pause_reading, self.resume_reading)
        self._waiting_for_end: list[Deferred[None]] = []

    @property
    def greeted(self) -> bool:
        """The master has said who it is."""
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
            if self.reason.startswith(_PASSING_ERRORS):
                return None
            return MasterRefuses(where=self.address, text=self.reason)
        if session.closed_reason not in _PASSING:
            return ConnectionRefused(where=self.address, reason=self.reason)
        return None

    async def gone(self) -> None:
        """Wait until the connection is gone; what it leaves behind is done by then."""
        if not self._inbox.ended:
            end: Deferred[None] = Deferred()
            self._waiting_for_end.append(end)
            await end

    async def commands(self) -> list[Command]:
        """What came since the last call, waiting for it; nothing once the connection is gone."""
        return await self._inbox.take()

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Keep them; read no more while too many wait."""
        self._inbox.put(commands)

    def session_ended(self, reason: CloseReason) -> None:
        """The connection is gone."""
        self._inbox.end()
        for end in self._waiting_for_end:
            end.callback(None)


def ask_for_all(dialect: Dialect, token: Token | None = None) -> Replicate:
    """The command that asks for all streams.

    :param token: from where, in the legacy dialect; None for what happens from now on
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
    """Connect to a master once.

    :param server_name: what the master must be called; None takes any
    :raises NoMaster: nobody is there
    """
    session = ProtocolSession(
        Side.CLIENT,
        server_name=server_name,
        name="synrepl-tail",
        dialect=dialect,
        now=scheduler.seconds(),
        limits=SessionLimits(line=LINE_LIMIT),
    )
    return await dialled(reactor, host, port, RawPeer(scheduler, session, dialect))


async def dialled(reactor: Any, host: str, port: int, peer: RawPeer) -> RawPeer:
    """Connect a peer.

    :raises NoMaster: nobody is there
    """
    endpoint = HostnameEndpoint(reactor, host, port)
    try:
        await connectProtocol(endpoint, peer)
    except (ConnectError, DNSLookupError, OSError) as error:
        raise NoMaster(where=f"{host}:{port}", reason=str(error).rstrip(".")) from None
    return peer
