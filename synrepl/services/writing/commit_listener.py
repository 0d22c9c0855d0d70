"""The interface through which a writer reports the outcome of its tokens and facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class CommitListener(Protocol):
    """Is notified by a :class:`~.stream_writer.StreamWriter`, stream by stream and in order."""

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer holds its lease, is at ``ledger.position``, and continues from there."""

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """Another server has taken over; replaces :meth:`lease_acquired` and :meth:`recovered`.

        Everything up to the floor of ``seen`` is settled, and facts that were announced may
        be lost.
        """

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """``tokens`` are settled; ``facts`` are those among them that were committed."""

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Facts of this writer were found committed after its session was lost."""

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Facts with these rows may have been committed, may be in a moment, or may not be at all.

        They must not be announced: if they were committed, :meth:`recovered` follows. But
        cached values that depend on them must no longer be served. Called before the
        caller who appended the facts gets an answer.
        """


class NullCommitListener:
    """Ignores everything, for a process whose facts are announced by the master.

    Every commit wakes the master, which reads positions and facts from the database.
    """

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """Ignored."""

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """Ignored."""

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """Ignored."""

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Ignored."""

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Ignored."""
