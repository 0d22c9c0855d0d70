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

    def __init__(self, name: LeaseKeeper, settled: CommitListener) -> None:
        self._name = name
        self._settled = settled

    @property
    def writer(self) -> str:
        """Whose writes they are."""
        return self._name.writer

    async def carry_out(self, write: Write[T]) -> T:
        """Run a write; returns once it is committed and announced.

        One whose commit was not answered is run again when it is proved to have
        been rolled back, as the database itself does whenever it can tell: so
        its caller hears of a lost connection only when nothing is proved.

        :raises CommitUnknown: what it would write may have been written
        :raises WriterAway: nothing was written; and what the write raises
        """
        while True:
            tenure = self._name.require()
            begun = tenure.begin(write)
            try:
                done = await write.commit(tenure.lease, begun.ask)
            except CommitUnknown as error:
                verdict = await self._verdict(tenure, begun, error)
                if verdict is WriteOutcome.ROLLED_BACK:
                    continue
                return await write.after_doubt(verdict, tenure.in_doubt(begun), error)
            except BaseException as error:
                tenure.rolled_back(begun)
                if isinstance(error, NotConfirmed | Fenced):
                    # Our session is with another server, or with one that hangs: it has not
                    # told that the name is lost, and may never do so.
                    self._name.lost(str(error), tenure)
                if not tenure.over:
                    self.moved(write.streams)
                elif isinstance(error, Fenced):
                    raise WriterAway(writer=self._name.writer) from error
                raise
            self._settle(tenure, begun, done.facts)
            return done.result

    def moved(self, streams: Sequence[Stream]) -> None:
        """Requests are closed: what was settled meanwhile may have waited for just that."""
        for stream in streams:
            self._settled.settled(stream, (), ())

    def unsure(self, streams: Sequence[Stream], facts: FactRows) -> None:
        """Facts may have been committed that are not announced as settled."""
        for stream in streams:
            rows = [row for fact in facts.get(stream.name, ()) for row in fact]
            if rows:
                self._settled.unsure(stream, rows)

    async def _verdict(
        self, tenure: LeaseTerm, begun: InFlightWrite, error: CommitUnknown
    ) -> WriteOutcome:
        """What became of a write whose commit was not answered.

        Its requests stay open, so nothing passes what it may have written;
        taking the name again finds out what is in the tables.
        """
        self.unsure(begun.write.streams, begun.write.possible)
        self._name.lost("the outcome of a commit is unknown", tenure)
        await self._name.taken_back(tenure, error)
        return tenure.verdict(begun)

    def _settle(self, tenure: LeaseTerm, begun: InFlightWrite, facts: Facts) -> None:
        streams = begun.write.streams
        if not tenure.over:
            try:
                tenure.committed(begun, facts)
            except SequenceBehind as error:
                self.moved(streams)
                self._name.lost(str(error), tenure)
        if tenure.over:
            # The recovery finds and announces them, perhaps only after our caller goes on.
            self.unsure(streams, {name: [fact.rows for fact in facts[name]] for name in facts})
            return
        for stream in streams:
            mine = facts.get(stream.name, ())
            tokens = [fact.token for fact in mine]
            # Told before the next one is settled: nobody may see a position without its facts.
            tenure.ledgers[stream.name].settle(tokens)
            self._settled.settled(stream, tokens, mine)
