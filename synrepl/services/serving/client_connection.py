"""The interface of a client's connection, as used by services."""

from __future__ import annotations

from typing import Protocol

from synrepl.core.tokens import Token
from synrepl.services.announcing.lines import Audience
from synrepl.streams.definition import Generation, Stream
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import Dialect
from synrepl.wire.lines import LineChunk


class ClientConnection(Protocol):
    """One follower's connection to the master.

    :ivar rows: row shapes that its listener sends to peers that send a bare REPLICATE
    :ivar legacy_rows: the same for legacy peers
    :ivar line_limit: maximum length of a line that the peer accepts, in bytes without the newline
    """

    rows: Generation
    legacy_rows: Generation
    line_limit: int

    @property
    def name(self) -> str:
        """The name that the peer has sent, or its address."""

    @property
    def address(self) -> str:
        """The address of the peer."""

    @property
    def dialect(self) -> Dialect | None:
        """Determined by the first REPLICATE; None before."""

    @property
    def queued_lines(self) -> int:
        """Number of lines that wait because the peer does not read."""

    @property
    def closing(self) -> bool:
        """Whether it is closing; then nothing more is read or sent."""

    def send(self, command: Command) -> None:
        """Send a command."""

    def write_live(self, chunk: LineChunk) -> None:
        """Send shared lines in the live lane; closes the connection if too many are queued."""

    async def write_catch_up(self, chunk: LineChunk) -> bool:
        """Send lines in the catch-up lane; returns once the connection accepts more.

        :returns: False if it never will, because the connection is lost
        """

    def left_behind(self, stream: Stream, after: Token) -> None:
        """The live lane has skipped facts of a stream; see :class:`~.publisher.LivePeer`."""

    def close(self, reason: CloseReason, text: str) -> None:
        """Send an ERROR and close."""


def audience(connection: ClientConnection) -> Audience:
    """The audience of a connection whose dialect is known."""
    dialect = connection.dialect
    assert dialect is not None
    generation = connection.rows if dialect.per_writer else connection.legacy_rows
    return Audience(dialect, generation, connection.line_limit)
