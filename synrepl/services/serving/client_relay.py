"""Relays commands from one client, or from the bus, to all others (REMOTE_SERVER_UP)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from synrepl.core.backlog import Backlog
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused
from synrepl.core.slices import Slices
from synrepl.services.serving.client_connection import ClientConnection
from synrepl.wire.codec import may_send, write_line
from synrepl.wire.commands import RemoteServerUp
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.lines import LineChunk

#: Maximum number of commands in the queue. At half of it, clients that send more are not read.
MAX_WAITING = 1_000

#: Maximum length of a server name; Matrix allows 255 bytes.
LONGEST_SERVER = 255

#: A client with this many queued lines is skipped: what other clients send must not get it
#: disconnected for being slow.
MAX_QUEUED_LINES = 1_000

#: Cost of one line to one client, in units of :class:`Slices`.
_COST = 2


class ServerNameTooLong(Refused):
    """REMOTE_SERVER_UP of a server whose name has {length} characters is ignored: {limit} is the most"""


class TooManyServersUp(Refused):
    """{limit} servers wait to be relayed to the clients; REMOTE_SERVER_UP of further ones is ignored"""


class ClientRelay:
    """Relays commands to all clients, in slices; each command is encoded once per dialect.

    A command that is already queued is not queued again.

    :param clients: returns all current connections
    """

    def __init__(
        self,
        scheduler: Scheduler,
        slices: Slices,
        clients: Callable[[], Collection[ClientConnection]],
    ) -> None:
        self._scheduler = scheduler
        self._slices = slices
        self._clients = clients
        self._backlog: Backlog[tuple[RemoteServerUp, ClientConnection | None]] = Backlog(
            scheduler, MAX_WAITING, MAX_WAITING // 2
        )
        self._waiting: set[tuple[RemoteServerUp, ClientConnection | None]] = set()
        self._busy = False

    def relay(self, command: RemoteServerUp, exclude: ClientConnection | None = None) -> None:
        """Queue a command for all clients whose dialect lets a server send it.

        :param exclude: the client that sent it, which does not get it back
        :raises ServerNameTooLong: :raises TooManyServersUp: it was not queued
        """
        if len(command.server) > LONGEST_SERVER:
            raise ServerNameTooLong(length=len(command.server), limit=LONGEST_SERVER)
        item = command, exclude
        if item in self._waiting:
            return
        if not self._backlog.put(item):
            raise TooManyServersUp(limit=MAX_WAITING)
        self._waiting.add(item)
        if not self._busy:
            self._busy = True
            self._scheduler.spawn("relay commands", self._run())

    @property
    def full(self) -> bool:
        """Whether the queue is at least half full."""
        return self._backlog.full

    async def room(self) -> None:
        """Wait until the queue is less than half full."""
        await self._backlog.room()

    async def _run(self) -> None:
        while len(self._backlog):
            await self._slices.step()
            item = self._backlog.take()
            self._waiting.discard(item)
            await self._relay(*item)
        self._busy = False

    async def _relay(self, command: RemoteServerUp, exclude: ClientConnection | None) -> None:
        chunks: dict[Dialect, LineChunk | None] = {}
        for connection in list(self._clients()):
            if connection is exclude:
                continue
            await self._slices.step(_COST)
            dialect = connection.dialect
            if dialect is None or connection.closing:
                continue
            if dialect not in chunks:
                chunks[dialect] = _encoded(command, dialect)
            chunk = chunks[dialect]
            if chunk is None or chunk.longest > connection.line_limit:
                continue
            if connection.queued_lines < MAX_QUEUED_LINES:
                connection.write_live(chunk)


def _encoded(command: RemoteServerUp, dialect: Dialect) -> LineChunk | None:
    """The encoded line; None if servers do not send this command in the dialect."""
    if not may_send(command, dialect, Side.SERVER):
        return None
    return LineChunk.of(write_line(command, dialect) + b"\n")
