"""One lease term of a writer, and the writes that are in flight in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger, Request
from synrepl.services.writing.outcome import (
    FactCounts,
    FactRows,
    WriteOutcome,
    count_facts,
    deduce_outcome,
)
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import TransactionResult, WriterLease
from synrepl.streams.definition import Fact, Stream

T_co = TypeVar("T_co", covariant=True)

#: Facts by stream name.
Facts = Mapping[str, Sequence[Fact]]


class Write(Protocol[T_co]):
    """One transaction that appends facts, and may do other things."""

    @property
    def streams(self) -> Sequence[Stream]:
        """The streams that it may append to, without duplicates."""

    @property
    def certain(self) -> FactRows:
        """The facts that are certainly written if it commits."""

    @property
    def possible(self) -> FactRows:
        """All facts that it may write."""

    async def commit(
        self, lease: WriterLease, begin: Callable[[], Mapping[str, Token]]
    ) -> TransactionResult[T_co]:
        """Run the transaction; returns its result and the facts that it wrote.

        :param begin: must be called before tokens are reserved; returns a floor per stream,
            see :meth:`InFlightWrite.reserve_request`
        """

    async def resolve(self, outcome: WriteOutcome, found: Facts, error: CommitUnknown) -> T_co:
        """The result after a lost answer to COMMIT, unless a rollback was proved.

        :param found: facts that this write or another one in doubt has written
        :raises CommitUnknown: ``error`` itself, if no result can be derived
        """


class InFlightWrite:
    """A write whose transaction has not ended.

    :ivar requests: open requests for tokens, by stream; empty before :meth:`reserve_request`
    """

    def __init__(self, write: Write[object], ledgers: Mapping[str, Ledger]) -> None:
        self.write = write
        self.requests: dict[str, Request] = {}
        self._ledgers = ledgers

    def reserve_request(self) -> Mapping[str, Token]:
        """Note in the ledgers that tokens will be reserved; returns a lower bound per stream.

        A transaction calls this in its own thread, and once more on every retry. The reactor
        may use the same ledger at that moment. This is safe: a request adds one key to a
        dictionary, and whatever the reactor concludes without it concerns tokens that were
        given out earlier, which are below the new ones.
        """
        for stream in self.write.streams:
            if stream.name not in self.requests:
                self.requests[stream.name] = self._ledgers[stream.name].request()
        return {stream: request.floor for stream, request in self.requests.items()}


class LeaseTerm:
    """The time from acquiring a writer's lease to losing or releasing it.

    When the term is over, its ledgers no longer change. Everything up to their positions
    has been announced; what is above is read from the tables when the lease is acquired
    again.

    :ivar ledgers: by stream
    :ivar incarnation: incarnation of the database server
    :ivar is_over: the lease was lost or released
    :ivar recovered: the writer's facts found when the lease was acquired again; None before
        that. They include all facts that the ledgers had not settled
    """

    def __init__(
        self, lease: WriterLease, ledgers: Mapping[str, Ledger], incarnation: int = 1
    ) -> None:
        self.lease = lease
        self.ledgers = ledgers
        self.incarnation = incarnation
        self.is_over = False
        self.recovered: Facts | None = None
        # Without those that were rolled back, and those whose tokens the ledgers know.
        self._in_flight: dict[InFlightWrite, None] = {}

    def begin(self, write: Write[object]) -> InFlightWrite:
        """Register a write that may append to the streams of this term."""
        in_flight = InFlightWrite(write, self.ledgers)
        self._in_flight[in_flight] = None
        return in_flight

    def rolled_back(self, in_flight: InFlightWrite) -> None:
        """Close the requests of a write whose tokens, if any, will never be written."""
        del self._in_flight[in_flight]
        if not self.is_over:
            for stream, request in in_flight.requests.items():
                self.ledgers[stream].abandon(request)

    def committed(self, in_flight: InFlightWrite, facts: Facts) -> None:
        """Pass the tokens of a committed write to the ledgers; they remain to be settled.

        Must not be called after the term, whose facts are found by recovery.

        :raises SequenceBehind: a token was already in use
        """
        for stream, request in in_flight.requests.items():
            tokens = [fact.token for fact in facts.get(stream, ())]
            self.ledgers[stream].reserved(request, tokens)
        del self._in_flight[in_flight]

    def outcome_of(self, in_flight: InFlightWrite) -> WriteOutcome:
        """Deduce the outcome of a write whose COMMIT was not answered from :attr:`recovered`.

        By the time the lease was acquired again, every transaction of this term had ended or
        was fenced. So each write that could be committed was complete, and its ``possible``
        lists all its facts.
        """
        others: FactCounts = sum(
            (
                count_facts(other.write.possible)
                for other in list(self._in_flight)
                if other is not in_flight
            ),
            FactCounts(),
        )
        found = {
            s: [fact.rows for fact in facts] for s, facts in self.facts_in_doubt(in_flight).items()
        }
        write = in_flight.write
        outcome = deduce_outcome(
            count_facts(write.certain), count_facts(write.possible), others, count_facts(found)
        )
        if outcome is WriteOutcome.ROLLED_BACK:
            self.rolled_back(in_flight)
        return outcome

    def facts_in_doubt(self, in_flight: InFlightWrite) -> Facts:
        """The recovered facts that this write may have written.

        Its own facts are above the floors of its requests. These are still open, so the
        ledgers know every token above them that belongs to another write, and such facts
        are left out.
        """
        assert self.recovered is not None
        return {
            stream: [
                fact
                for fact in self.recovered[stream]
                if fact.token > request.floor and not self.ledgers[stream].knows(fact.token)
            ]
            for stream, request in in_flight.requests.items()
        }
