"""Where a process that writes learns that its caches are stale.

Of its own facts when they are committed, of other writers' when they are
announced: each before a position moves past them.
"""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.writing.stream_writer import CommitListener
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class CoherentCommitListener:
    """Applies what the own writer committed, then passes it on to whoever announces it."""

    def __init__(self, coherence: Coherence, writer: str, settled: CommitListener) -> None:
        self._coherence = coherence
        self._writer = writer
        self._settled = settled

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer stands at ``ledger.position`` and goes on from there."""
        self._settled.lease_acquired(stream, writer, ledger)
        self._coherence.begin(stream.name, writer, ledger.position)

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """Caches may hold what came of facts that are lost."""
        self._coherence.reset(stream.name, writer, ledger.position)
        self._settled.failed_over(stream, writer, ledger, seen)

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """``tokens`` are settled; ``facts`` are the ones among them that were committed."""
        self._apply(stream, facts)
        self._settled.settled(stream, tokens, facts)

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Facts of this writer that were found committed after its session was lost."""
        self._apply(stream, facts)
        self._settled.recovered(stream, facts)

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Rows that may have been committed, or will be found to be: stale is stale."""
        self._coherence.suspect(stream.name, rows)
        self._settled.outcome_unknown(stream, rows)

    def _apply(self, stream: Stream, facts: Sequence[Fact]) -> None:
        if facts:
            self._coherence.apply(stream.name, self._writer, facts[0].token - 1, facts)


class CoherentPositionListener:
    """Applies what other writers committed; a :class:`~.stream_state.Movements` that comes first.

    :param writer: the own one, whose facts :class:`CoherentCommitListener` applies
    """

    def __init__(self, coherence: Coherence, writer: str) -> None:
        self._coherence = coherence
        self._writer = writer

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """A writer's position moved past these facts."""
        if prev == new:
            self._coherence.reset(stream.name, writer, new)
        elif writer != self._writer:
            self._coherence.apply(stream.name, writer, prev, facts)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Nothing: the movements of the writers told of these facts before."""
