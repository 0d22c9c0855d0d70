"""A master's subscriber of the bus: relays commands, and mirrors in-memory streams of others.

The copy serves followers that are not on the bus, or have missed messages there: the master announces
these facts to its own followers, and returns them over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from synrepl.core.errors import Unavailable
from synrepl.core.log import Logger
from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.positions.cursor import Cursor, CursorDecision
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.following.follower import Upstream
from synrepl.storage.memory.store import MAX_ROWS_PER_STREAM
from synrepl.storage.memory.stream import MemoryStream
from synrepl.storage.store import Observation, Page, TrimResult
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec
from synrepl.wire.batching import BatchAssembler, BatchTooLarge
from synrepl.wire.closing import reason_and_text
from synrepl.wire.commands import Command, Position, Rdata, Replicate

#: Called with a stream, its writer, its position, and whether a position was known before.
OnRestart = Callable[[Stream, str, Token, bool], object]


class NotHeardYet(Unavailable):
    """writer {writer!r} of stream {stream!r} has not been heard since the bus was last lost, so nobody knows whether it has started again; try again"""


class Mirror:
    """Copies of in-memory streams, each of one other writer that announces it on the bus.

    Facts that were missed on the bus cannot be fetched from anywhere. So a gap is treated like a
    restart of the writer: everything before is dropped, and followers get a POSITION that makes
    them fetch, which is how they notice the loss.

    :param writers: each stream with the name of its writer; lines of other writers are ignored
    """

    def __init__(self, writers: Iterable[tuple[Stream, str]], log: Logger) -> None:
        self._mirrored = {stream.name: _Mirrored(stream, writer) for stream, writer in writers}
        self._log = log
        self._assembler = BatchAssembler()
        self._states: Mapping[str, StreamState] = {}
        self._stream_restarted: OnRestart = lambda *_: None

    @property
    def streams(self) -> Sequence[str]:
        """The names of the streams."""
        return list(self._mirrored)

    def begin(
        self,
        states: Mapping[str, StreamState],
        stream_restarted: OnRestart,
    ) -> None:
        """Announce to these from now on.

        :param states: the states of all streams, by name
        :param stream_restarted: called when all earlier facts of a writer are gone
        """
        self._states, self._stream_restarted = states, stream_restarted

    # -- from the bus ----------------------------------------------------------------------

    def received(self, commands: Iterable[Command]) -> None:
        """Handle lines from the bus, in order.

        :raises BatchTooLarge: the connection must be closed
        """
        for command in commands:
            if not isinstance(command, Rdata | Position):
                continue
            mirrored = self._mirrored.get(command.stream)
            if mirrored is None or command.writer != mirrored.writer:
                continue
            if isinstance(command, Position):
                self._assembler.reset(command)
                self._position(mirrored, command)
            elif (lines := self._assembler.add(command)) is not None:
                self._fact(mirrored, *lines)

    def disconnected(self) -> None:
        """Nothing is received any more; each writer announces itself on the next connection."""
        for mirrored in self._mirrored.values():
            mirrored.cursor.connection_lost()

    def _fact(self, mirrored: _Mirrored, token: Token, raw: Sequence[bytes]) -> None:
        if mirrored.cursor.on_rdata(token) is CursorDecision.APPLY:
            fact = Fact(token, mirrored.writer, tuple(self._decoded(mirrored, raw)))
            mirrored.facts.commit([fact])
            mirrored.cursor.applied(token)
            self._moved(mirrored, token, [fact])

    def _position(self, mirrored: _Mirrored, command: Position) -> None:
        known = mirrored.cursor.position is not None
        verdict = mirrored.cursor.on_position(command.prev, command.new)
        if verdict is CursorDecision.ADVANCED and known:
            self._moved(mirrored, command.new, ())
        elif verdict is not CursorDecision.DUPLICATE:
            mirrored.cursor.caught_up(command.new)
            self._start_again(mirrored, command.new, known)

    def _moved(self, mirrored: _Mirrored, token: Token, facts: Sequence[Fact]) -> None:
        state = self._states[mirrored.stream.name]
        state.announce(mirrored.writer, token, facts)
        state.settled_upto({mirrored.writer: token}, token)

    def _start_again(self, mirrored: _Mirrored, position: Token, known: bool) -> None:
        stream, writer = mirrored.stream, mirrored.writer
        mirrored.forget(position)
        state = self._states[stream.name]
        state.begin(Observation(position, position, {}), {})
        state.positions[writer] = position
        self._stream_restarted(stream, writer, position, known)

    def _decoded(self, mirrored: _Mirrored, raw: Iterable[bytes]) -> Iterable[Row]:
        """Decode rows; those that are invalid are skipped, and the first of them is logged."""
        for row in raw:
            try:
                yield mirrored.codec.decode(row)
            except (BadRow, MalformedRow) as error:
                if not mirrored.bad_rows:
                    self._log.warn("{error}; such rows are ignored", error=error)
                mirrored.bad_rows += 1

    def trim(self, stream: Stream, upto: Token, limit: int) -> TrimResult:
        """Drop facts up to a token, at most about ``limit`` rows."""
        facts = self._mirrored[stream.name].facts
        facts.recorded = max(facts.recorded, upto)
        return facts.trim(upto, 0, limit, lambda writer: (MAX_TOKEN, None))

    # -- for followers that have missed something -------------------------------------------------

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Part of a range, for followers of this master; see :class:`~.sources.FactSource`.

        :raises Trimmed: facts of the range are gone, or were never received
        """
        return self._mirrored[stream.name].facts.page(span, writer, limit)

    async def page_if_connected(
        self, stream: Stream, span: Range, writer: str | None, limit: int
    ) -> Page:
        """The same, for a follower that may know the writer's position better than this process.

        :raises NotHeardYet: :raises Trimmed:
        """
        mirrored = self._mirrored[stream.name]
        if not mirrored.cursor.is_connected:
            raise NotHeardYet(stream=stream.name, writer=mirrored.writer)
        return mirrored.facts.page(span, writer, limit)


class _Mirrored:
    """The copy of one stream.

    :ivar facts: the latest facts; bounded
    """

    def __init__(self, stream: Stream, writer: str) -> None:
        self.stream = stream
        self.writer = writer
        self.codec = RowCodec(stream)
        self.cursor = Cursor(None, in_memory=True)
        self.bad_rows = 0
        self.forget(0)

    def forget(self, position: Token) -> None:
        """Drop all facts; none at or below ``position`` is known any more."""
        self.facts = MemoryStream(self.stream, MAX_ROWS_PER_STREAM)
        self.facts.trimmed = self.facts.writer(self.writer).trimmed = position


class MasterBusSubscriber:
    """Relays commands; rows and positions of streams with a table are read from the database.

    It sends REPLICATE like any other process, because its peers expect that of a newcomer. The
    answers cost it nothing.

    :param handle: called with each command that is not about streams
    :param mirror: gets the rows and positions of in-memory streams
    :param joined: called when the bus is connected
    :param left: called when the connections are lost
    """

    def __init__(
        self,
        handle: Callable[[Command], object],
        mirror: Mirror | None = None,
        joined: Callable[[], object] = lambda: None,
        left: Callable[[], object] = lambda: None,
    ) -> None:
        self._handle = handle
        self._mirror = mirror
        self._joined = joined
        self._left = left
        self._upstream: Upstream | None = None

    def connected(self, upstream: Upstream) -> None:
        """Send REPLICATE, as a newcomer does."""
        self._upstream = upstream
        upstream.send(Replicate())
        self._joined()

    def received(self, commands: Sequence[Command]) -> None:
        """Pass commands on to the mirror and the handler."""
        if self._mirror is not None:
            try:
                self._mirror.received(commands)
            except BatchTooLarge as error:
                if self._upstream is not None:
                    self._upstream.close(*reason_and_text(error))
        for command in commands:
            if not isinstance(command, Rdata | Position):
                self._handle(command)

    def disconnected(self) -> None:
        """Messages are lost from now on."""
        self._upstream = None
        if self._mirror is not None:
            self._mirror.disconnected()
        self._left()
