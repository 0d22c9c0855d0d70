"""A process announces its own writer, without looking at the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.announcing.pending_facts import PendingFacts
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.services.bus.bus_publisher import AnnouncedPosition
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class OwnWriter:
    """Turns what settles into moves; see :class:`synrepl.services.writing.commit_listener.Settled`.

    :param movements: told of every move, in order
    """

    def __init__(self, movements: PositionListener) -> None:
        self._movements = movements
        self._streams: dict[str, AnnouncedStream] = {}

    @property
    def states(self) -> Mapping[str, AnnouncedStream]:
        """How far each stream is, by name."""
        return self._streams

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer stands at ``ledger.position`` and goes on from there."""
        before = self._streams.get(stream.name)
        said = ledger.position if before is None else before.said
        self._streams[stream.name] = AnnouncedStream(stream, writer, ledger, said)

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """Another server has taken over: followers have to look what is left."""
        at = ledger.position
        self._streams[stream.name] = AnnouncedStream(stream, writer, ledger, at)
        self._movements.writer_advanced(stream, writer, at, at, ())

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """``tokens`` are settled; ``facts`` are the ones among them that were committed."""
        written = self._streams[stream.name]
        written.waiting.add(facts)
        self._move(written, written.waiting.take(written.ledger.position))

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Facts of this writer that were found committed after its session was lost."""
        self._move(self._streams[stream.name], facts)

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Nothing can be announced of facts that were perhaps committed; they are found if they were."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """Where the writer is on each of its streams."""
        for written in self._streams.values():
            yield AnnouncedPosition(written.stream, written.writer, written.said)

    def _move(self, written: AnnouncedStream, facts: Sequence[Fact]) -> None:
        prev, new = written.said, written.ledger.position
        if new > prev:
            written.said = new
            if facts and facts[0].token <= prev:  # said before the name was lost and taken back
                facts = [fact for fact in facts if fact.token > prev]
            self._movements.writer_advanced(written.stream, written.writer, prev, new, facts)


class AnnouncedStream:
    """One stream of the writer.

    :ivar said: the position as announced
    """

    def __init__(self, stream: Stream, writer: str, ledger: Ledger, said: Token) -> None:
        self.stream = stream
        self.writer = writer
        self.ledger = ledger
        self.said = said
        self.waiting = PendingFacts()

    @property
    def positions(self) -> Mapping[str, Token]:
        """The one writer's position, of a stream that has no other."""
        return {self.writer: self.said}

    @property
    def linear(self) -> Token:
        """The same, of such a stream."""
        return self.said
