"""Encodes facts as lines.

A :class:`LineEncoder` encodes the facts of streams for one *audience*: all followers that need
the same bytes. Rows are encoded once per audience, whatever the number of followers, in chunks
of about 64 KiB, so that one write of the same bytes serves each follower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact, Generation, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.wire.codec import rdata_prefix, write_line
from synrepl.wire.commands import Position
from synrepl.wire.dialects import Dialect
from synrepl.wire.lines import LineChunk

#: Size at which a chunk is cut, in bytes; one system call writes about as much.
CHUNK_BYTES = 64 * 1024

#: Facts that are encoded together: usually somewhat less than a chunk.
FACTS_AT_ONCE = 256


class Audience(NamedTuple):
    """The properties that determine the bytes of a line.

    All followers of one audience get the same bytes.

    :ivar line_limit: bytes of a line without its newline that the peer accepts
    """

    dialect: Dialect
    generation: Generation
    line_limit: int

    @property
    def linear(self) -> bool:
        """Whether these followers know one number per stream, and get the linear view."""
        return not self.dialect.per_writer


class LineEncoder:
    """Encodes facts for one audience.

    :param codecs: row codecs by stream name
    """

    def __init__(self, audience: Audience, codecs: Mapping[str, RowCodec]) -> None:
        self.audience = audience
        self._codecs = codecs
        self._encoders: dict[str, Callable[[Row], bytes]] = {}
        self._prefixes: dict[tuple[str, str], bytes] = {}

    def knows(self, stream: Stream) -> bool:
        """Whether peers of this generation know the stream."""
        return self.audience.generation in stream.generations

    def live(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> Iterator[LineChunk]:
        """Encode the advance of a position from ``prev`` to ``new``, and the facts in between.

        All rows of a fact but the last carry ``batch``. A fact with a row too long for the peer
        is announced by POSITION instead, so that the peer fetches it. An advance that ends
        without a row is announced by POSITION, too. A writer that starts at 0 is introduced
        first, since peers may not know it yet. After a failover ``prev`` equals ``new``, and a
        peer with any other position notices that it has missed something.
        """
        prefix, encode = self._prepare(stream, writer)
        at = prev
        if writer and prev == 0:
            yield self.position(stream, writer, 0, 0)
        for some in _parts(facts):
            lines = _lines(some, prefix, prefix + b"batch ", encode)
            if not lines:
                continue
            chunk = _chunk(lines)
            if chunk.longest > self.audience.line_limit:
                lines = self._step_over(stream, writer, some, lines)
                chunk = _chunk(lines)
            at = next(fact.token for fact in reversed(some) if fact.rows)
            yield from _cut(chunk, lines)
        if at != new or (prev and prev == new):
            yield self.position(stream, writer, at, new)

    def catch_up(self, stream: Stream, facts: Sequence[Fact]) -> Iterator[LineChunk]:
        """Encode missed facts for a peer of the linear view.

        Rows that share a token repeat it, as on real legacy servers. A fact with a row too long
        for the peer is left out; the next token or the closing POSITION takes the peer past it.
        """
        prefix, encode = self._prepare(stream, "")
        for some in _parts(facts):
            lines = _lines(some, prefix, None, encode)
            if lines and self._too_long(lines):
                lines = self._replace_long(some, lines, lambda fact: [])
            if lines:
                yield from _cut(_chunk(lines), lines)

    def position(self, stream: Stream, writer: str, prev: Token, new: Token) -> LineChunk:
        """Encode one POSITION line."""
        return _chunk([self._position(stream, writer, prev, new)])

    def _prepare(self, stream: Stream, writer: str) -> tuple[bytes, Callable[[Row], bytes]]:
        encode = self._encoders.get(stream.name)
        if encode is None:
            encode = self._codecs[stream.name].encoder(self.audience.generation)
            self._encoders[stream.name] = encode
        prefix = self._prefixes.get((stream.name, writer))
        if prefix is None:
            prefix = rdata_prefix(stream.name, writer or None, self.audience.dialect)
            self._prefixes[stream.name, writer] = prefix
        return prefix, encode

    def _step_over(
        self, stream: Stream, writer: str, facts: Sequence[Fact], lines: list[bytes]
    ) -> list[bytes]:
        """Replace the lines of each fact that has a line too long by a POSITION."""
        # Any ``prev`` but the peer's own position makes it fetch.
        return self._replace_long(
            facts, lines, lambda fact: [self._position(stream, writer, fact.token, fact.token)]
        )

    def _replace_long(
        self,
        facts: Sequence[Fact],
        lines: list[bytes],
        instead: Callable[[Fact], list[bytes]],
    ) -> list[bytes]:
        """Replace the lines of each fact that has a line too long; no fact is split."""
        out: list[bytes] = []
        left = iter(lines)
        for fact in facts:
            own = list(islice(left, len(fact.rows)))
            if own:
                out += instead(fact) if self._too_long(own) else own
        return out

    def _too_long(self, lines: Sequence[bytes]) -> bool:
        return len(max(lines, key=len)) > self.audience.line_limit + 1

    def _position(self, stream: Stream, writer: str, prev: Token, new: Token) -> bytes:
        command = Position(stream.name, writer or None, prev, new)
        return write_line(command, self.audience.dialect) + b"\n"


def _parts(facts: Sequence[Fact]) -> Iterator[Sequence[Fact]]:
    for start in range(0, len(facts), FACTS_AT_ONCE):
        yield facts[start : start + FACTS_AT_ONCE]


def _lines(
    facts: Sequence[Fact], prefix: bytes, batch: bytes | None, encode: Callable[[Row], bytes]
) -> list[bytes]:
    """The lines of facts, built as whole lists, which is faster than one by one.

    :param batch: prefix of all rows of a fact but the last; None repeats the token
    """
    cells = [encode(row) for fact in facts for row in fact.rows]
    heads: list[bytes] = []
    for fact in facts:
        count = len(fact.rows)
        if count:
            head = b"%b%d " % (prefix, fact.token)
            if count > 1:
                heads += [head if batch is None else batch] * (count - 1)
            heads.append(head)
    return [b"%b%b\n" % line for line in zip(heads, cells, strict=True)]


def _cut(chunk: LineChunk, lines: list[bytes]) -> Iterator[LineChunk]:
    """Split a chunk that is much too large."""
    if len(chunk.data) < 2 * CHUNK_BYTES:
        yield chunk
        return
    first = size = 0
    for after, line in enumerate(lines, 1):
        size += len(line)
        if size >= CHUNK_BYTES or after == len(lines):
            yield _chunk(lines[first:after])
            first, size = after, 0


def _chunk(lines: list[bytes]) -> LineChunk:
    return LineChunk(b"".join(lines), len(lines), max(map(len, lines)) - 1)
