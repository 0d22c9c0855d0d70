"""Where another process announces what this one writes: the master, woken by each commit."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class NullCommitListener:
    """Has nothing to do. Implements :class:`~.commit_listener.CommitListener`."""

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The master finds in the database where the writer stands."""

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """The master learns that from the database."""

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """The commit told the master, which reads the facts."""

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """The master finds them as it finds all others."""

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """If they were committed, the master finds them."""
