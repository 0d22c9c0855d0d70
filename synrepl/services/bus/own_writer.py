"""Announces a process's own writer on the bus, without reading the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.announcing.stream_state import PendingFacts, PositionListener
from synrepl.services.bus.bus_publisher import AnnouncedPosition
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class OwnWriter:
    """Turns settled tokens into advances of positions; implements :class:`synrepl.services.writing.commit_listener.Settled`.

    :param listener: is notified of every advance, in order
    """

    def __init__(self, listener: PositionListener) -> None:
        self._listener = listener
        self._streams: dict[str, AnnouncedStream] = {}

    @property
    def states(self) -> Mapping[str, AnnouncedStream]:
        """The announced position of each stream, by name."""
        return self._streams

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer is at ``ledger.position`` and continues from there."""
        before = self._streams.get(stream.name)
        announced = ledger.position if before is None else before.announced
        self._streams[stream.name] = AnnouncedStream(stream, writer, ledger, announced)

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """Another server has taken over: make followers check which facts survived."""
        at = ledger.position
        self._streams[stream.name] = AnnouncedStream(stream, writer, ledger, at)
        self._listener.writer_advanced(stream, writer, at, at, ())

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """``tokens`` are settled; ``facts`` are those among them that were committed."""
        written = self._streams[stream.name]
        written.waiting.add(facts)
        self._move(written, written.waiting.take(written.ledger.position))

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Facts of this writer were found committed after its session was lost."""
        self._move(self._streams[stream.name], facts)

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Nothing is announced yet; if the facts were committed, they are recovered later."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """The writer's position in each of its streams."""
        for written in self._streams.values():
            yield AnnouncedPosition(written.stream, written.writer, written.announced)

    def _move(self, written: AnnouncedStream, facts: Sequence[Fact]) -> None:
        prev, new = written.announced, written.ledger.position
        if new > prev:
            written.announced = new
            if (
                facts and facts[0].token <= prev
            ):  # announced before the lease was lost and acquired again
                facts = [fact for fact in facts if fact.token > prev]
            self._listener.writer_advanced(written.stream, written.writer, prev, new, facts)


class AnnouncedStream:
    """One stream of the writer.

    :ivar announced: the announced position
    """

    def __init__(self, stream: Stream, writer: str, ledger: Ledger, announced: Token) -> None:
        self.stream = stream
        self.writer = writer
        self.ledger = ledger
        self.announced = announced
        self.waiting = PendingFacts()

    @property
    def positions(self) -> Mapping[str, Token]:
        """The position of the writer, the only one of its stream."""
        return {self.writer: self.announced}

    @property
    def linear(self) -> Token:
        """The linear position, which is the same in such a stream."""
        return self.announced
