"""What a process says of streams: where the writers that it speaks for stand, and their moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from synrepl.core.tokens import Token
from synrepl.services.announcing.lines import Audience
from synrepl.services.announcing.publisher import LivePeer, Publisher
from synrepl.services.bus.channels import Channels
from synrepl.streams.definition import Generation, Stream
from synrepl.wire.dialects import CURRENT
from synrepl.wire.lines import LineChunk

#: The longest row that is said, in bytes. The bus itself takes far longer ones, but
#: Redis cuts off a subscriber for whom 32 MiB wait, and a POSITION makes it fetch the row.
LONGEST_LINE = 2**24

#: All who listen to the bus get the same bytes.
AUDIENCE = Audience(CURRENT, Generation.CURRENT, LONGEST_LINE)


class BusConnections(Protocol):
    """The connections to the bus; see ``synrepl.adapters.redis.pubsub.RedisBusConnections``."""

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        """Publish lines, one message each, in order; bounded: too many end the connections."""

    @property
    def full(self) -> bool:
        """True while the connection does not accept more."""

    async def room(self) -> None:
        """Wait until it accepts more, or the connections are lost."""

    def pause(self) -> None:
        """Listen no more for now."""

    def resume(self) -> None:
        """Listen again."""

    def close(self, why: str) -> None:
        """End the connections; they come back by themselves."""


class AnnouncedPosition(NamedTuple):
    """Where a writer of a stream is.

    :ivar prev: where it was said to be, when nothing of it lies in between; None when
        whoever has less has missed something
    """

    stream: Stream
    writer: str
    position: Token
    prev: Token | None = None


class AnnouncedWriters(Protocol):
    """The writers that a process speaks for."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """Where each of them is on each of its streams."""


class BusPublisher:
    """Says moves as they come, and standings when asked.

    :param publisher: gets the moves of the writers in ``spoken``, and only those
    """

    def __init__(self, publisher: Publisher, channels: Channels, spoken: AnnouncedWriters) -> None:
        self._publisher = publisher
        self._channels = channels
        self._spoken = spoken
        self._connections: BusConnections | None = None
        self._peers: list[LivePeer] = []

    def join(self, connections: BusConnections, streams: Iterable[str]) -> None:
        """Say where all writers stand, and from now on how they move.

        :param streams: all streams there are
        """
        self.leave()
        self._connections = connections
        channels = self._channels
        if channels.per_stream:
            for name in streams:
                self._subscribe(connections, channels.of_stream(name), frozenset({name}))
        else:
            self._subscribe(connections, channels.main, None)
        self.announce()

    def leave(self) -> None:
        """Say nothing any more."""
        for peer in self._peers:
            self._publisher.unsubscribe(peer)
        self._peers.clear()
        self._connections = None

    def announce(self, announced_positions: Iterable[AnnouncedPosition] | None = None) -> None:
        """Say where writers stand; all that are spoken for by default.

        In answers ``prev`` is where they are too, for nobody knows who has what.
        """
        if self._connections is None:
            return
        self._publisher.flush()  # so that the wire does not go back (R2)
        encoder = self._publisher.encoder(AUDIENCE)
        lines: dict[str, list[bytes]] = {}
        told = (
            self._spoken.announced_positions()
            if announced_positions is None
            else announced_positions
        )
        for stream, writer, position, prev in told:
            if encoder.knows(stream):
                chunk = encoder.position(
                    stream, writer, position if prev is None else prev, position
                )
                lines.setdefault(self._channels.of_stream(stream.name), []).extend(_lines(chunk))
        for channel, some in lines.items():
            self._connections.publish(channel, some)

    def _subscribe(
        self, connections: BusConnections, channel: str, streams: frozenset[str] | None
    ) -> None:
        peer = _OnChannel(connections, channel)
        self._peers.append(peer)
        self._publisher.subscribe(peer, AUDIENCE, streams)


class _OnChannel:
    """All who listen to one channel, as the publisher sees them."""

    def __init__(self, connections: BusConnections, channel: str) -> None:
        self._connections = connections
        self._channel = channel

    def write_live(self, chunk: LineChunk) -> None:
        self._connections.publish(self._channel, _lines(chunk))

    def left_behind(self, stream: Stream, after: Token) -> None:
        raise AssertionError("nobody on the bus has the linear view")


def _lines(chunk: LineChunk) -> list[bytes]:
    return chunk.data[:-1].split(b"\n")
