"""Whoever announces what a process's own writer settles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class CommitListener(Protocol):
    """Told by :class:`~.stream_writer.StreamWriter` what becomes of its tokens and facts."""

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer stands at ``ledger.position`` and goes on from there."""

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """Instead of :meth:`lease_acquired` and :meth:`recovered`: another server has taken over.

        Everything up to the floor of ``seen`` is settled, and facts that were announced may
        be lost.
        """

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """``tokens`` are settled; ``facts`` are the ones among them that were committed."""

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Facts of this writer that were found committed after its session was lost."""

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Facts of these rows may have been committed, now or in a moment, or not at all.

        Nothing is to be announced: if they were, :meth:`recovered` will tell. But
        who keeps what they make out of date must not serve it any longer. Called
        before the caller who appended them hears anything.
        """
