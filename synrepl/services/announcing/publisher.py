"""Movements of streams go out to live followers: encoded once, joined once, shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from synrepl.core.clock import Clock, DelayedCall
from synrepl.core.tokens import Token
from synrepl.services.announcing.lines import CHUNK_BYTES, Audience, LineEncoder
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec
from synrepl.wire.lines import LineChunk

#: The names of the streams that a follower of the linear view has asked for.
Subscription = frozenset[str]


class LivePeer(Protocol):
    """A follower in the live lane."""

    def write_live(self, chunk: LineChunk) -> None:
        """Send these lines, or queue them; the bytes are shared, not copied."""

    def left_behind(self, stream: Stream, after: Token) -> None:
        """The live lane lost sight of a stream: catch up above ``after`` (linear view only)."""


class Publisher:
    """Fans movements out to audiences and their followers.

    Lines gather for the rest of a reactor turn and then go out together.

    :param codecs: row codecs by stream name
    """

    def __init__(self, clock: Clock, codecs: Mapping[str, RowCodec]) -> None:
        self._clock = clock
        self._codecs = codecs
        self._rooms: dict[Audience, _AudienceBuffer] = {}
        self._flush: DelayedCall | None = None

    def encoder(self, audience: Audience) -> LineEncoder:
        """The encoder of an audience, for lines that are for one follower alone."""
        return self._room(audience).encoder

    def subscribe(self, peer: LivePeer, audience: Audience, streams: Subscription | None) -> None:
        """Let ``peer`` hear what happens from now on.

        What gathered before is sent first, so the peer hears nothing that its
        POSITION already covers.

        :param streams: which streams; None for all. Replaces an earlier choice.
        """
        self.flush()
        self._room(audience).peers[peer] = streams

    def unsubscribe(self, peer: LivePeer) -> None:
        """Forget a peer; unknown ones are fine."""
        for audience, room in list(self._rooms.items()):
            room.peers.pop(peer, None)
            if not room.peers:
                del self._rooms[audience]

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """A writer's position moved: for followers that know positions per writer."""
        for audience, room in self._rooms.items():
            if not audience.linear and room.peers and room.encoder.knows(stream):
                room.add(stream, room.encoder.live(stream, writer, prev, new, facts))
                self._flush_soon()

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """The linear position moved: for followers that know one number per stream.

        :param facts: None when there are too many to hand over: followers are
            sent to the catch-up lane instead
        """
        for audience, room in self._rooms.items():
            if audience.linear and room.wants(stream) and room.encoder.knows(stream):
                if facts is None:
                    self.flush()
                    room.leave_behind(stream, prev)
                else:
                    room.add(stream, room.encoder.live(stream, "", prev, new, facts))
                    self._flush_soon()

    def flush(self) -> None:
        """Send what has gathered now."""
        if self._flush is not None:
            if self._flush.active():
                self._flush.cancel()
            self._flush = None
        for room in self._rooms.values():
            room.flush()

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = self._clock.callLater(0, self._flushed)

    def _flushed(self) -> None:
        self._flush = None
        self.flush()

    def _room(self, audience: Audience) -> _AudienceBuffer:
        room = self._rooms.get(audience)
        if room is None:
            room = self._rooms[audience] = _AudienceBuffer(LineEncoder(audience, self._codecs))
        return room


class _AudienceBuffer:
    """The followers of one audience, and the lines that have gathered for them."""

    def __init__(self, encoder: LineEncoder) -> None:
        self.encoder = encoder
        self.peers: dict[LivePeer, Subscription | None] = {}
        self._gathered: list[tuple[str, LineChunk]] = []

    def wants(self, stream: Stream) -> bool:
        return any(s is None or stream.name in s for s in self.peers.values())

    def add(self, stream: Stream, chunks: Iterable[LineChunk]) -> None:
        self._gathered += [(stream.name, chunk) for chunk in chunks]

    def leave_behind(self, stream: Stream, after: Token) -> None:
        for peer, streams in list(self.peers.items()):
            if streams is None or stream.name in streams:
                peer.left_behind(stream, after)

    def flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        joined: dict[Subscription | None, list[LineChunk]] = {}
        for peer, streams in list(self.peers.items()):
            chunks = joined.get(streams)
            if chunks is None:
                chunks = joined[streams] = _join(gathered, streams)
            for chunk in chunks:
                peer.write_live(chunk)


def _join(gathered: list[tuple[str, LineChunk]], streams: Subscription | None) -> list[LineChunk]:
    """The gathered lines of some streams, as few chunks of a good size."""
    out: list[LineChunk] = []
    parts: list[LineChunk] = []
    size = 0
    for name, chunk in gathered:
        if streams is not None and name not in streams:
            continue
        parts.append(chunk)
        size += len(chunk.data)
        if size >= CHUNK_BYTES:
            out.append(_joined(parts))
            parts, size = [], 0
    if parts:
        out.append(_joined(parts))
    return out


def _joined(parts: list[LineChunk]) -> LineChunk:
    if len(parts) == 1:
        return parts[0]
    return LineChunk(
        b"".join([part.data for part in parts]),
        sum(part.lines for part in parts),
        max(part.longest for part in parts),
    )
