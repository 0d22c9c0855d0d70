"""A connection as services see it."""

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

    :ivar rows: the generation of row shapes that its listener gives to peers that
        send a bare REPLICATE
    :ivar legacy_rows: the same for legacy peers
    :ivar line_limit: bytes of a line that its peer accepts, without the newline
    """

    rows: Generation
    legacy_rows: Generation
    line_limit: int

    @property
    def name(self) -> str:
        """What the peer calls itself, or where it comes from."""

    @property
    def address(self) -> str:
        """Where it comes from."""

    @property
    def dialect(self) -> Dialect | None:
        """Settled by its first REPLICATE."""

    @property
    def queued_lines(self) -> int:
        """Lines that wait because the peer does not read."""

    @property
    def closing(self) -> bool:
        """True once it is closing: nothing more is read or sent."""

    def send(self, command: Command) -> None:
        """Send a command."""

    def write_live(self, chunk: LineChunk) -> None:
        """Send shared lines in the live lane; closes the connection when too many wait."""

    async def write_catch_up(self, chunk: LineChunk) -> bool:
        """Send lines in the catch-up lane; returns once the peer has room for more.

        :returns: False when it never will, for the connection is gone
        """

    def left_behind(self, stream: Stream, after: Token) -> None:
        """The live lane lost sight of a stream; see :class:`~.publish.LivePeer`."""

    def close(self, reason: CloseReason, text: str) -> None:
        """Send an ERROR and close."""


def audience(connection: ClientConnection) -> Audience:
    """The audience of a connection whose dialect is settled."""
    dialect = connection.dialect
    assert dialect is not None
    generation = connection.rows if dialect.per_writer else connection.legacy_rows
    return Audience(dialect, generation, connection.line_limit)
