"""The worker's side of TCP replication: a connection that reconnects by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol as Interface

from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ReconnectingClientFactory
from twisted.python.failure import Failure

from synrepl.adapters.tcp.line_peer import LinePeer
from synrepl.core.clock import Scheduler
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.session import ProtocolSession, SessionLimits


class UpstreamPeerOwner(Interface):
    """Follows the master; see ``synrepl.services.following.follower.Follower``."""

    def connected(self, upstream: UpstreamPeer) -> None: ...

    def received(self, commands: Sequence[Command]) -> None: ...

    def disconnected(self) -> None: ...


class UpstreamPeer(LinePeer):
    """The connection to the master."""

    def __init__(
        self,
        scheduler: Scheduler,
        session: ProtocolSession,
        owner: UpstreamPeerOwner,
        factory: WorkerFactory,
    ) -> None:
        super().__init__(scheduler, session)
        self._owner = owner
        self._factory = factory
        self._greeted = False

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the connection."""
        return self.session.dialect

    def pause(self) -> None:
        """Stop reading: TCP makes the master wait."""
        self.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        self.resume_reading()

    def session_started(self) -> None:
        """Tell the owner; it sends REPLICATE without waiting for SERVER."""
        self._factory.connected_to(self)
        self._owner.connected(self)

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Pass commands to the owner; SERVER completes the handshake."""
        if not self._greeted and self.session.peer_server is not None and not self.session.closing:
            self._greeted = True
            self._factory.handshake_done()
        self._owner.received(commands)

    def session_ended(self, reason: CloseReason) -> None:
        """Tell the factory, which reconnects, and the owner."""
        self._factory.lost(self, reason)
        self._owner.disconnected()


class WorkerFactory(ReconnectingClientFactory):
    """Connects to a master, and reconnects with back-off.

    The back-off is reset by the master's SERVER line, not by the connection, so that a
    listener that accepts and drops connections is not hammered.

    :param name: the worker's NAME
    :param server_name: the expected server name; None accepts any
    :param log: logs (format, fields) connections made and lost
    :ivar connections: number of connections made
    :ivar closed: number of connections closed, by reason
    """

    maxDelay = 30
    initialDelay = 0.5
    delay = initialDelay
    factor = 1.7
    noisy = False

    def __init__(
        self,
        scheduler: Scheduler,
        owner: UpstreamPeerOwner,
        name: str,
        server_name: str | None,
        dialect: Dialect,
        log: Callable[..., object],
        limits: SessionLimits = SessionLimits(),
    ) -> None:
        self._scheduler = scheduler
        self._owner = owner
        self._name = name
        self._server_name = server_name
        self._dialect = dialect
        self._log = log
        self._limits = limits
        self.peer: UpstreamPeer | None = None
        self.connections = 0
        self.closed: dict[str, int] = {}

    @property
    def has_handshake(self) -> bool:
        """Whether there is a connection whose handshake is complete."""
        return self.peer is not None and self.peer.session.peer_server is not None

    def buildProtocol(self, addr: IAddress | None) -> UpstreamPeer:
        """A peer for a new connection."""
        session = ProtocolSession(
            Side.CLIENT,
            server_name=self._server_name,
            name=self._name,
            dialect=self._dialect,
            now=self._scheduler.seconds(),
            limits=self._limits,
        )
        return UpstreamPeer(self._scheduler, session, self._owner, self)

    def stop(self) -> None:
        """Close the connection, and do not reconnect."""
        ReconnectingClientFactory.stopTrying(self)
        if self.peer is not None:
            self.peer.close(CloseReason.LOCAL)

    def connected_to(self, peer: UpstreamPeer) -> None:
        """Called when a connection is made."""
        self.peer = peer
        self.connections += 1

    def handshake_done(self) -> None:
        """Called when the master has sent the expected SERVER."""
        ReconnectingClientFactory.resetDelay(self)
        self._log("connected to {where}", where=self.peer.address if self.peer else "?")

    def lost(self, peer: UpstreamPeer, reason: CloseReason) -> None:
        """Called when a connection is lost."""
        if self.peer is peer:
            self.peer = None
        self.closed[reason] = self.closed.get(reason, 0) + 1
        why = peer.session.fault or peer.session.peer_error or reason.value
        self._log("connection lost: {why}", why=str(why))

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Log the failure, and retry later."""
        self._log("cannot connect: {why}", why=reason.getErrorMessage())
        ReconnectingClientFactory.clientConnectionFailed(self, connector, reason)
