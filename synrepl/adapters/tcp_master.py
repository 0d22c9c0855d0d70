"""The master's side of TCP replication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol as Interface

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ServerFactory

from synrepl.adapters.line_peer import LinePeer
from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Token
from synrepl.streams.definition import Generation, Stream
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import MODERN, Dialect, Side
from synrepl.wire.lines import Chunk
from synrepl.wire.session import Limits, Session


class Owner(Interface):
    """Who answers the clients; see ``synrepl.services.serving.serve.Master``."""

    def connected(self, connection: ClientPeer) -> None: ...

    def received(self, connection: ClientPeer, commands: Sequence[Command]) -> None: ...

    def disconnected(self, connection: ClientPeer, reason: CloseReason) -> None: ...

    def left_behind(self, connection: ClientPeer, stream: Stream, after: Token) -> None: ...


class ClientPeer(LinePeer):
    """A client of this master."""

    def __init__(
        self,
        scheduler: Scheduler,
        session: Session,
        owner: Owner,
        rows: Generation,
        legacy_rows: Generation,
        line_limit: int,
    ) -> None:
        super().__init__(scheduler, session)
        self.rows = rows
        self.legacy_rows = legacy_rows
        self.line_limit = line_limit
        self._owner = owner

    @property
    def name(self) -> str:
        """What the client calls itself, or where it comes from."""
        return self.session.peer_name or self.address

    @property
    def dialect(self) -> Dialect | None:
        """Settled by the client's first REPLICATE."""
        return self.session.dialect

    def write_live(self, chunk: Chunk) -> None:
        """Send shared lines in the live lane."""
        self.send_chunk(chunk)

    async def write_catch_up(self, chunk: Chunk) -> bool:
        """Send lines in the catch-up lane; returns once the client has room for more.

        :returns: False when it never will
        """
        if not await self.room():
            return False
        self.send_chunk(chunk)
        return await self.room()

    def left_behind(self, stream: Stream, after: Token) -> None:
        """The live lane lost sight of a stream."""
        self._owner.left_behind(self, stream, after)

    def session_started(self) -> None:
        """Tell the owner."""
        self._owner.connected(self)

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Tell the owner."""
        self._owner.received(self, commands)

    def session_ended(self, reason: CloseReason) -> None:
        """Tell the owner."""
        self._owner.disconnected(self, reason)


class MasterFactory(ServerFactory):
    """Makes a :class:`ClientPeer` for each client of one listener.

    :param modern: the dialect of a client that sends a bare REPLICATE
    :param rows: the row shapes that such clients get
    :param legacy_rows: those that legacy clients get
    """

    noisy = False

    def __init__(
        self,
        scheduler: Scheduler,
        owner: Owner,
        server_name: str,
        modern: Dialect = MODERN,
        rows: Generation = Generation.MODERN,
        limits: Limits = Limits(),
        legacy_rows: Generation = Generation.LEGACY,
    ) -> None:
        self._scheduler = scheduler
        self._owner = owner
        self._server_name = server_name
        self._modern = modern
        self._rows = rows
        self._legacy_rows = legacy_rows
        self._limits = limits

    def buildProtocol(self, addr: IAddress | None) -> ClientPeer:
        """A peer for a new connection."""
        session = Session(
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
        )
