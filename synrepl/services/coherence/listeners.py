"""Listeners that invalidate the caches of a writing process.

Its own facts are applied when they are committed, those of other writers when they are announced,
both before a position moves past them.
"""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.writing.commit_listener import CommitListener
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class CoherentCommitListener:
    """Applies commits of this process's writer, then forwards them to the next listener."""

    def __init__(self, coherence: Coherence, writer: str, next_listener: CommitListener) -> None:
        self._coherence = coherence
        self._writer = writer
        self._next = next_listener

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """Start applying facts above ``ledger.position``."""
        self._next.lease_acquired(stream, writer, ledger)
        self._coherence.begin(stream.name, writer, ledger.position)

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """Clear caches that may hold data derived from lost facts."""
        self._coherence.reset(stream.name, writer, ledger.position)
        self._next.failed_over(stream, writer, ledger, seen)

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """Apply ``facts``, the committed ones among the settled ``tokens``."""
        self._apply(stream, facts)
        self._next.settled(stream, tokens, facts)

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Apply facts that were found committed after the writer's session was lost."""
        self._apply(stream, facts)
        self._next.recovered(stream, facts)

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Invalidate what rows make stale that may have been committed."""
        self._coherence.suspect(stream.name, rows)
        self._next.outcome_unknown(stream, rows)

    def _apply(self, stream: Stream, facts: Sequence[Fact]) -> None:
        if facts:
            self._coherence.apply(stream.name, self._writer, facts[0].token - 1, facts)


class CoherentPositionListener:
    """Applies facts of other writers; the first :class:`~.stream_state.PositionListener` in the order.

    :param writer: this process's writer, whose facts :class:`CoherentCommitListener` applies
    """

    def __init__(self, coherence: Coherence, writer: str) -> None:
        self._coherence = coherence
        self._writer = writer

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Apply facts that another writer's position has moved past."""
        if prev == new:
            self._coherence.reset(stream.name, writer, new)
        elif writer != self._writer:
            self._coherence.apply(stream.name, writer, prev, facts)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Do nothing: the advances of the writers have applied these facts before."""
