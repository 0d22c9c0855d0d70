"""The database of a real Synapse as a read-only source of facts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.foreign import progress
from synrepl.storage.foreign.bounds import OpenForeignTransaction, open_transactions
from synrepl.storage.foreign.paging import MAIN_PROCESS, ForeignFacts
from synrepl.storage.foreign.release import Release, recognise
from synrepl.storage.store import Page
from synrepl.streams.definition import Stream

T = TypeVar("T")

#: Statement timeout in seconds: the database belongs to Synapse.
STATEMENT_S = 30.0


class ForeignStore:
    """Reads the streams of a real Synapse; a follower's :class:`.FactSource`.

    Every transaction is read-only, and its statements have a timeout.

    :param statement_s: statement timeout in seconds
    """

    is_late = False

    def __init__(self, database: Database, statement_s: float = STATEMENT_S) -> None:
        self._database = database
        self._statement_ms = max(1, round(statement_s * 1000))
        self._release: Release | None = None
        self._facts: dict[str, ForeignFacts] = {}

    async def release(self) -> Release:
        """The recognised schema, which is read at the first call.

        :raises NotSynapse: see :func:`.release.recognise`
        """
        if self._release is None:
            self._release = await self.read("recognise", recognise)
        return self._release

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """A page of about ``limit`` rows of the facts in ``span``; see :meth:`.FactStore.page`.

        Real servers delete superseded or delivered facts, so there may be fewer than
        there were, but never fewer than a real worker would read.

        :raises NoTableForStream: this release has no table for the stream
        :raises UnknownSchema: its tables lack columns; and the errors of :meth:`release`
        """
        release = await self.release()
        facts = self._facts.get(stream.name)
        if facts is None:
            located = release.locate(stream.name)
            facts = self._facts[stream.name] = ForeignFacts(stream, located)

        def work(txn: Transaction) -> Page:
            unnamed = writer or progress.sole_writer(txn, release, stream.name) or MAIN_PROCESS
            return facts.page(txn, span, writer, unnamed, limit)

        return await self.read("page", work)

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that a stream's sequence can have given out.

        :returns: None for a stream without known tables, or without a sequence in this release,
            because its process counts in memory
        :raises NotSynapse:
        :raises TableLocked: and the errors of the database
        """
        release = await self.release()
        at = release.streams.get(stream.name)
        if at is None or at.stream.sequence is None:
            return None

        def work(txn: Transaction) -> Token | None:
            seen = progress.observe_stream(txn, release, stream.name, progress.NEWEST_ROWS)
            recorded = max(seen.recorded.values(), default=0)
            return None if seen.last is None else max(seen.last, seen.highest, recorded)

        return await self.read("given out", work)

    async def observe(
        self, streams: Collection[str]
    ) -> tuple[dict[str, progress.ForeignProgress], list[OpenForeignTransaction]]:
        """The progress of some streams, and the transactions that were open afterwards.

        :returns: the progress by stream, without streams that this release has no tables for
        :raises TableLocked: and the errors of the database
        """
        release = await self.release()

        def work(
            txn: Transaction,
        ) -> tuple[dict[str, progress.ForeignProgress], list[OpenForeignTransaction]]:
            seen = {
                name: progress.observe_stream(txn, release, name, progress.NEWEST_ROWS)
                for name in streams
                if name in release.streams
            }
            return seen, open_transactions(txn)

        # Not in one snapshot: open transactions have to be read after the sequences.
        return await self._database.run("observe", work, read_only=True)

    async def read(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in a read-only transaction with a statement timeout."""

        def bounded(txn: Transaction) -> T:
            txn.execute(
                "SELECT set_config('statement_timeout', %s, true)", (str(self._statement_ms),)
            )
            return work(txn)

        # One snapshot, so that tables, positions and the recognised schema are consistent.
        return await self._database.run(
            name, bounded, read_only=True, isolation=Isolation.REPEATABLE_READ
        )
