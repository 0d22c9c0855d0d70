"""Writes from their request for tokens to their settlement (invariant R1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from synrepl.positions.ledger import SequenceBehind
from synrepl.services.writing.commit_listener import CommitListener
from synrepl.services.writing.lease_term import Facts, InFlightWrite, LeaseTerm, Write
from synrepl.services.writing.outcome import FactRows, WriteOutcome
from synrepl.services.writing.writer_lease import LeaseKeeper, WriterAway
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import Fenced, NotConfirmed
from synrepl.streams.definition import Stream

T = TypeVar("T")


class CommitPipeline:
    """Carries out writes of one writer, any number at once, and has them announced.

    :param settled: told what became settled
    """

    def __init__(self, lease: LeaseKeeper, settled: CommitListener) -> None:
        self._lease = lease
        self._settled = settled

    @property
    def writer(self) -> str:
        """Whose writes they are."""
        return self._lease.writer

    async def run(self, write: Write[T]) -> T:
        """Run a write; returns once it is committed and announced.

        One whose commit was not answered is run again when it is proved to have
        been rolled back, as the database itself does whenever it can tell: so
        its caller hears of a lost connection only when nothing is proved.

        :raises CommitUnknown: what it would write may have been written
        :raises WriterAway: nothing was written; and what the write raises
        """
        while True:
            term = self._lease.require()
            in_flight = term.begin(write)
            try:
                done = await write.commit(term.lease, in_flight.reserve_request)
            except CommitUnknown as error:
                outcome = await self._resolve_outcome(term, in_flight, error)
                if outcome is WriteOutcome.ROLLED_BACK:
                    continue
                return await write.resolve(outcome, term.facts_in_doubt(in_flight), error)
            except BaseException as error:
                term.rolled_back(in_flight)
                if isinstance(error, NotConfirmed | Fenced):
                    # Our session is with another server, or with one that hangs: it has not
                    # told that the name is lost, and may never do so.
                    self._lease.lost(str(error), term)
                if not term.is_over:
                    self.requests_closed(write.streams)
                elif isinstance(error, Fenced):
                    raise WriterAway(writer=self._lease.writer) from error
                raise
            self._settle(term, in_flight, done.facts)
            return done.result

    def requests_closed(self, streams: Sequence[Stream]) -> None:
        """Requests are closed: what was settled meanwhile may have waited for just that."""
        for stream in streams:
            self._settled.settled(stream, (), ())

    def report_unknown(self, streams: Sequence[Stream], facts: FactRows) -> None:
        """Facts may have been committed that are not announced as settled."""
        for stream in streams:
            rows = [row for fact in facts.get(stream.name, ()) for row in fact]
            if rows:
                self._settled.outcome_unknown(stream, rows)

    async def _resolve_outcome(
        self, term: LeaseTerm, in_flight: InFlightWrite, error: CommitUnknown
    ) -> WriteOutcome:
        """What became of a write whose commit was not answered.

        Its requests stay open, so nothing passes what it may have written;
        taking the name again finds out what is in the tables.
        """
        self.report_unknown(in_flight.write.streams, in_flight.write.possible)
        self._lease.lost("the outcome of a commit is unknown", term)
        await self._lease.retaken(term, error)
        return term.outcome_of(in_flight)

    def _settle(self, term: LeaseTerm, in_flight: InFlightWrite, facts: Facts) -> None:
        streams = in_flight.write.streams
        if not term.is_over:
            try:
                term.committed(in_flight, facts)
            except SequenceBehind as error:
                self.requests_closed(streams)
                self._lease.lost(str(error), term)
        if term.is_over:
            # The recovery finds and announces them, perhaps only after our caller goes on.
            self.report_unknown(
                streams, {name: [fact.rows for fact in facts[name]] for name in facts}
            )
            return
        for stream in streams:
            mine = facts.get(stream.name, ())
            tokens = [fact.token for fact in mine]
            # Told before the next one is settled: nobody may see a position without its facts.
            term.ledgers[stream.name].settle(tokens)
            self._settled.settled(stream, tokens, mine)
