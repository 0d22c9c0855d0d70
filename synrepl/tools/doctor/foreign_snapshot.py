"""Observes a real Synapse's database, in one read-only transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from synrepl.storage.database import Transaction
from synrepl.storage.foreign import progress
from synrepl.storage.foreign.progress import RECENT_ROWS, ForeignProgress
from synrepl.storage.foreign.release import Release
from synrepl.tools.doctor import sessions
from synrepl.tools.doctor.durability import Durability, durability
from synrepl.tools.doctor.sessions import OpenSession


@dataclass(frozen=True, slots=True)
class ForeignSnapshot:
    """The observed state of the database.

    :ivar streams: all streams, except those with a table that is locked exclusively
    """

    release: Release
    streams: Mapping[str, ForeignProgress]
    sessions: Mapping[int, OpenSession]
    durability: Durability

    def written_by(self, session: OpenSession) -> list[str]:
        """The streams whose tables a transaction writes to or locks."""
        return _fed_by(self.release, session.tables)

    def locked_by(self, session: OpenSession) -> list[str]:
        """The streams that a transaction has locked against readers."""
        return _fed_by(self.release, session.locked)

    def holder(self, stream: str) -> OpenSession | None:
        """The session whose transaction has been writing to a stream the longest."""
        writing = [one for one in self.sessions.values() if stream in self.written_by(one)]
        return max(writing, key=lambda one: one.age_s or 0.0, default=None)


def take_snapshot(txn: Transaction, release: Release, rows: int = RECENT_ROWS) -> ForeignSnapshot:
    """Observe everything.

    :param rows: number of newest rows to read per table
    """
    seen = sessions.open_sessions(txn)  # first, because reading a locked table would block
    locked = [table for session in seen.values() for table in session.locked]
    skipped = _fed_by(release, locked)
    readable = {name: at for name, at in release.streams.items() if name not in skipped}
    found = progress.observe(txn, replace(release, streams=readable), rows)
    return ForeignSnapshot(release, found, seen, durability(txn))


def _fed_by(release: Release, tables: Collection[str]) -> list[str]:
    return [
        name
        for name, at in release.streams.items()
        if any(feed.table in tables for feed in at.stream.feeds)
    ]
