"""The master's side of TCP replication.

Input is processed in slices: a client that sends much is read piece by piece, as
the shared budget allows, and not at all while the consumers of its commands are
behind. Its socket is not read in the meantime, so TCP makes the client wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from typing import Protocol as Interface

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.python.failure import Failure

from synrepl.adapters.tcp.connection_table import ConnectionLimits, ConnectionTable, address_of
from synrepl.adapters.tcp.line_peer import LinePeer
from synrepl.core.clock import Scheduler
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.streams.definition import Generation, Stream
from synrepl.wire.closing import CloseReason, FailedToKeepUp
from synrepl.wire.commands import Command
from synrepl.wire.dialects import MODERN, Dialect, Side
from synrepl.wire.lines import LineChunk
from synrepl.wire.session import ProtocolSession, SessionLimits

#: Bytes parsed per step, and bytes per unit of :class:`Slices`.
PIECE_BYTES = 1024
BYTES_PER_UNIT = 16

#: Refused connections that may be waiting for their ERROR line to be sent. Each still needs a
#: descriptor; further ones are closed without an answer.
MAX_PENDING_REFUSALS = 16

_TOO_MANY = "too many connections; close some, or raise max_connections of this listener"


class ClientPeerOwner(Interface):
    """Answers the clients; see ``synrepl.services.serving.master.Master``."""

    def connected(self, connection: ClientPeer) -> None: ...

    def received(self, connection: ClientPeer, commands: Sequence[Command]) -> None: ...

    def full(self, connection: ClientPeer) -> bool: ...

    async def room(self, connection: ClientPeer) -> None: ...

    def refused(self, reason: CloseReason) -> None: ...

    def cut_off(self, connection: ClientPeer, fault: FailedToKeepUp) -> None: ...

    def disconnected(self, connection: ClientPeer, reason: CloseReason) -> None: ...

    def left_behind(self, connection: ClientPeer, stream: Stream, after: Token) -> None: ...


class ClientPeer(LinePeer):
    """A client of this master.

    :param slices: budget for parsing its input
    :param connections: all connections of the listener
    :param where: its address, as used by the table
    """

    def __init__(
        self,
        scheduler: Scheduler,
        session: ProtocolSession,
        owner: ClientPeerOwner,
        rows: Generation,
        legacy_rows: Generation,
        line_limit: int,
        slices: Slices,
        connections: ConnectionTable[ClientPeer],
        where: str,
    ) -> None:
        super().__init__(scheduler, session)
        self.rows = rows
        self.legacy_rows = legacy_rows
        self.line_limit = line_limit
        self._owner = owner
        self._slices = slices
        self._connections = connections
        self._where = where
        self._unread = bytearray()

    @property
    def name(self) -> str:
        """The client's NAME, or its address before it has sent one."""
        return self.session.peer_name or self.address

    @property
    def dialect(self) -> Dialect | None:
        """The client's dialect, known from its first REPLICATE on."""
        return self.session.dialect

    def write_live(self, chunk: LineChunk) -> None:
        """Send lines of the live lane; the chunk is shared with other clients."""
        self.send_chunk(chunk)

    async def write_catch_up(self, chunk: LineChunk) -> bool:
        """Send lines of the catch-up lane, and wait until there is room for more.

        :returns: False if the connection is closing or lost
        """
        if not await self.room():
            return False
        self.send_chunk(chunk)
        return await self.room()

    def left_behind(self, stream: Stream, after: Token) -> None:
        """Tell the owner that the live lane has skipped facts of a stream after ``after``."""
        self._owner.left_behind(self, stream, after)

    def displace(self) -> None:
        """Close the connection to make room for another client; this one has sent nothing."""
        self.close(CloseReason.TOO_MANY_CONNECTIONS, _TOO_MANY)

    # -- reading --------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Parse as much as the budget allows now, and the rest in later turns."""
        self._unread += data
        if self.is_reading_paused:
            return
        while self._unread or self._owner.full(self):
            if self._owner.full(self) or not self._slices.take(self._cost()):
                self.pause_reading()
                self.scheduler.spawn(f"read {self.name}", self._read_on())
                return
            self._read_piece()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Discard input that has not been parsed."""
        self._unread.clear()
        super().connectionLost(reason)

    async def _read_on(self) -> None:
        while self._connected and not self.closing and (self._unread or self._owner.full(self)):
            await self._owner.room(self)
            await self._slices.step(self._cost())
            self._read_piece()
        self.resume_reading()

    def _cost(self) -> int:
        return 1 + min(len(self._unread), PIECE_BYTES) // BYTES_PER_UNIT

    def _read_piece(self) -> None:
        piece = bytes(self._unread[:PIECE_BYTES])
        del self._unread[:PIECE_BYTES]
        if self._connected and piece:
            super().dataReceived(piece)
        if self.closing:
            self._unread.clear()

    # -- for the session --------------------------------------------------------------------

    def session_started(self) -> None:
        """Tell the owner of the client."""
        self._connections.enter(self, self._where)
        self._owner.connected(self)

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Pass commands to the owner. A client that has sent any is not displaced."""
        self._connections.active(self)
        self._owner.received(self, commands)

    def session_closing(self) -> None:
        """Tell the owner if the client did not keep up."""
        if isinstance(self.session.fault, FailedToKeepUp):
            self._owner.cut_off(self, self.session.fault)

    def session_ended(self, reason: CloseReason) -> None:
        """Tell the owner that the client is gone."""
        self._connections.left(self)
        self._owner.disconnected(self, reason)


class RefusedPeer(Protocol):
    """A connection beyond the limits, which gets an ERROR line and is closed.

    :param on_closed: called when the connection is closed
    """

    def __init__(self, on_closed: Callable[[], object]) -> None:
        self._on_closed = on_closed

    def connectionMade(self) -> None:
        """Send the reason and close."""
        transport: Any = self.transport
        transport.write(f"ERROR {_TOO_MANY}\n".encode())
        transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The connection is closed."""
        self._on_closed()


class MasterFactory(ServerFactory):
    """Makes a :class:`ClientPeer` for each client of one listener.

    :param modern: the dialect of a client that sends a bare REPLICATE
    :param rows: the row shapes for such clients
    :param legacy_rows: the row shapes for legacy clients
    :param connections: limits on connections
    :param slices: budget for parsing input
    :ivar connections: open connections
    """

    noisy = False

    def __init__(
        self,
        scheduler: Scheduler,
        owner: ClientPeerOwner,
        server_name: str,
        modern: Dialect = MODERN,
        rows: Generation = Generation.MODERN,
        limits: SessionLimits = SessionLimits(),
        legacy_rows: Generation = Generation.LEGACY,
        connections: ConnectionLimits = ConnectionLimits(),
        slices: Slices | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._owner = owner
        self._slices = Slices(scheduler) if slices is None else slices
        self.connections: ConnectionTable[ClientPeer] = ConnectionTable(connections)
        self._pending_refusals = 0
        self._server_name = server_name
        self._modern = modern
        self._rows = rows
        self._legacy_rows = legacy_rows
        self._limits = limits

    def buildProtocol(self, addr: IAddress | None) -> ClientPeer | RefusedPeer | None:
        """A peer for a new connection, within the limits."""
        where = address_of(addr)
        if not self.connections.make_room(where):
            return self._refused()
        session = ProtocolSession(
            Side.SERVER,
            server_name=self._server_name,
            now=self._scheduler.seconds(),
            modern=self._modern,
            limits=self._limits,
        )
        return ClientPeer(
            self._scheduler,
            session,
            self._owner,
            self._rows,
            self._legacy_rows,
            self._limits.peer_line,
            self._slices,
            self.connections,
            where,
        )

    def _refused(self) -> RefusedPeer | None:
        self._owner.refused(CloseReason.TOO_MANY_CONNECTIONS)
        if self._pending_refusals >= MAX_PENDING_REFUSALS:
            return None
        self._pending_refusals += 1
        return RefusedPeer(self._refusal_closed)

    def _refusal_closed(self) -> None:
        self._pending_refusals -= 1
