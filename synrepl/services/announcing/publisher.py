"""Sends the advances of streams to live followers: encoded once, joined once, shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from synrepl.core.clock import Clock, DelayedCall
from synrepl.core.tokens import Token
from synrepl.services.announcing.lines import CHUNK_BYTES, Audience, LineEncoder
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec
from synrepl.wire.lines import LineChunk

#: The names of the streams that a follower of the linear view has requested.
Subscription = frozenset[str]


class LivePeer(Protocol):
    """A follower in the live lane."""

    def write_live(self, chunk: LineChunk) -> None:
        """Send these lines, or queue them; the bytes are shared, not copied."""

    def left_behind(self, stream: Stream, after: Token) -> None:
        """The live lane has skipped facts: catch up above ``after`` (linear view only)."""


class Publisher:
    """A :class:`.PositionListener` that sends lines to audiences and their followers.

    Lines are collected for the rest of a reactor turn and then sent together.

    :param codecs: row codecs by stream name
    """

    def __init__(self, clock: Clock, codecs: Mapping[str, RowCodec]) -> None:
        self._clock = clock
        self._codecs = codecs
        self._buffers: dict[Audience, _AudienceBuffer] = {}
        self._flush: DelayedCall | None = None

    def encoder(self, audience: Audience) -> LineEncoder:
        """The encoder of an audience, for lines that only one follower gets."""
        return self._buffer(audience).encoder

    def subscribe(self, peer: LivePeer, audience: Audience, streams: Subscription | None) -> None:
        """Send advances to ``peer`` from now on.

        Collected lines are sent to the others first, so the peer gets none that its POSITION
        already covers.

        :param streams: the names of the streams; None for all. Replaces an earlier choice
        """
        self.flush()
        self._buffer(audience).peers[peer] = streams

    def unsubscribe(self, peer: LivePeer) -> None:
        """Stop sending to a peer; does nothing for an unknown one."""
        for audience, buffer in list(self._buffers.items()):
            buffer.peers.pop(peer, None)
            if not buffer.peers:
                del self._buffers[audience]

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """A writer's position advanced: send to followers that know positions per writer."""
        for audience, buffer in self._buffers.items():
            if not audience.linear and buffer.peers and buffer.encoder.knows(stream):
                buffer.add(stream, buffer.encoder.live(stream, writer, prev, new, facts))
                self._flush_soon()

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """The linear position advanced: send to followers that know one number per stream.

        :param facts: None if there are too many to pass on; followers then continue in the
            catch-up lane
        """
        for audience, buffer in self._buffers.items():
            if audience.linear and buffer.wants(stream) and buffer.encoder.knows(stream):
                if facts is None:
                    self.flush()
                    buffer.leave_behind(stream, prev)
                else:
                    buffer.add(stream, buffer.encoder.live(stream, "", prev, new, facts))
                    self._flush_soon()

    def flush(self) -> None:
        """Send the collected lines now."""
        if self._flush is not None:
            if self._flush.active():
                self._flush.cancel()
            self._flush = None
        for buffer in self._buffers.values():
            buffer.flush()

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = self._clock.callLater(0, self._flushed)

    def _flushed(self) -> None:
        self._flush = None
        self.flush()

    def _buffer(self, audience: Audience) -> _AudienceBuffer:
        buffer = self._buffers.get(audience)
        if buffer is None:
            buffer = self._buffers[audience] = _AudienceBuffer(LineEncoder(audience, self._codecs))
        return buffer


class _AudienceBuffer:
    """The followers of one audience, and the lines collected for them."""

    def __init__(self, encoder: LineEncoder) -> None:
        self.encoder = encoder
        self.peers: dict[LivePeer, Subscription | None] = {}
        self._collected: list[tuple[str, LineChunk]] = []

    def wants(self, stream: Stream) -> bool:
        return any(s is None or stream.name in s for s in self.peers.values())

    def add(self, stream: Stream, chunks: Iterable[LineChunk]) -> None:
        self._collected += [(stream.name, chunk) for chunk in chunks]

    def leave_behind(self, stream: Stream, after: Token) -> None:
        for peer, streams in list(self.peers.items()):
            if streams is None or stream.name in streams:
                peer.left_behind(stream, after)

    def flush(self) -> None:
        collected, self._collected = self._collected, []
        if not collected:
            return
        joined: dict[Subscription | None, list[LineChunk]] = {}
        for peer, streams in list(self.peers.items()):
            chunks = joined.get(streams)
            if chunks is None:
                chunks = joined[streams] = _join(collected, streams)
            for chunk in chunks:
                peer.write_live(chunk)


def _join(collected: list[tuple[str, LineChunk]], streams: Subscription | None) -> list[LineChunk]:
    """The collected lines of some streams, in few chunks of a suitable size."""
    out: list[LineChunk] = []
    parts: list[LineChunk] = []
    size = 0
    for name, chunk in collected:
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
