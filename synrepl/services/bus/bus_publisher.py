"""Announces positions and rows on the bus, for the writers that a process announces."""

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

#: Maximum length of a published row, in bytes. Redis accepts far longer messages, but closes the
#: connection of a subscriber for which 32 MiB are queued. For a longer row a POSITION is sent,
#: which makes followers fetch it.
LONGEST_LINE = 2**24

#: All followers on the bus get the same bytes.
AUDIENCE = Audience(CURRENT, Generation.CURRENT, LONGEST_LINE)


class BusConnections(Protocol):
    """The two connections to the bus; see ``synrepl.adapters.redis.pubsub.RedisBusConnections``."""

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        """Publish lines, one message each, in order. Too many queued lines end the connections."""

    @property
    def full(self) -> bool:
        """Whether the connection accepts no more at present."""

    async def room(self) -> None:
        """Wait until it accepts more, or the connections are lost."""

    def pause(self) -> None:
        """Stop reading for now."""

    def resume(self) -> None:
        """Read again."""

    def close(self, why: str) -> None:
        """Close the connections; they are made again automatically."""


class AnnouncedPosition(NamedTuple):
    """The position of a writer of a stream, as it is announced.

    :ivar prev: the position announced before, if the writer has no fact in between; None if a
        follower with a lower position has missed something
    """

    stream: Stream
    writer: str
    position: Token
    prev: Token | None = None


class AnnouncedWriters(Protocol):
    """The writers that a process announces."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """The position of each writer in each of its streams."""


class BusPublisher:
    """Publishes rows and advances as they happen, and positions when asked.

    :param publisher: is notified of the advances of ``writers``, and of no others
    """

    def __init__(self, publisher: Publisher, channels: Channels, writers: AnnouncedWriters) -> None:
        self._publisher = publisher
        self._channels = channels
        self._writers = writers
        self._connections: BusConnections | None = None
        self._peers: list[LivePeer] = []

    def join(self, connections: BusConnections, streams: Iterable[str]) -> None:
        """Announce all writers, and from now on their advances.

        :param streams: the names of all streams
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
        """Announce nothing any more."""
        for peer in self._peers:
            self._publisher.unsubscribe(peer)
        self._peers.clear()
        self._connections = None

    def announce(self, positions: Iterable[AnnouncedPosition] | None = None) -> None:
        """Announce positions; by default those of all writers.

        In answers ``prev`` equals the position, since it is unknown what the other processes
        have.
        """
        if self._connections is None:
            return
        self._publisher.flush()  # so that the wire does not go back (R2)
        encoder = self._publisher.encoder(AUDIENCE)
        lines: dict[str, list[bytes]] = {}
        announced = self._writers.announced_positions() if positions is None else positions
        for stream, writer, position, prev in announced:
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
    """All subscribers of one channel, as one peer of the publisher."""

    def __init__(self, connections: BusConnections, channel: str) -> None:
        self._connections = connections
        self._channel = channel

    def write_live(self, chunk: LineChunk) -> None:
        self._connections.publish(self._channel, _lines(chunk))

    def left_behind(self, stream: Stream, after: Token) -> None:
        raise AssertionError("nobody on the bus has the linear view")


def _lines(chunk: LineChunk) -> list[bytes]:
    return chunk.data[:-1].split(b"\n")
