"""The time for which one lease holds a writer's name, and the writes that were begun in it."""

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

#: Facts by the name of their stream.
Facts = Mapping[str, Sequence[Fact]]


class Write(Protocol[T_co]):
    """One transaction that appends facts, whatever else it does."""

    @property
    def streams(self) -> Sequence[Stream]:
        """What it may append to, each once."""

    @property
    def certain(self) -> FactRows:
        """What it writes for certain when it is committed."""

    @property
    def possible(self) -> FactRows:
        """All that it may write."""

    async def commit(
        self, lease: WriterLease, begin: Callable[[], Mapping[str, Token]]
    ) -> TransactionResult[T_co]:
        """Run it; its answer, and the facts it has written.

        :param begin: to be called before tokens are asked for; the floors, by stream
        """

    async def resolve(self, outcome: WriteOutcome, found: Facts, error: CommitUnknown) -> T_co:
        """Its answer, after ``error``, when it was not proved to be rolled back.

        :param found: the facts that it or others have written whose outcome was in doubt
        :raises CommitUnknown: ``error``, when that does not make an answer
        """


class InFlightWrite:
    """A write that is under way.

    :ivar requests: for tokens, by stream; none before :meth:`reserve_request`
    """

    def __init__(self, write: Write[object], ledgers: Mapping[str, Ledger]) -> None:
        self.write = write
        self.requests: dict[str, Request] = {}
        self._ledgers = ledgers

    def reserve_request(self) -> Mapping[str, Token]:
        """Note that tokens are going to be asked for; they will be above these, by stream.

        A transaction calls this in its own thread, and again when it is run again.
        The reactor may be at work on the same ledger: a request is one new key of
        a dictionary, and what the reactor concludes without it is about tokens that
        were given out before, which are below those that come now.
        """
        for stream in self.write.streams:
            if stream.name not in self.requests:
                self.requests[stream.name] = self._ledgers[stream.name].request()
        return {stream: request.floor for stream, request in self.requests.items()}


class LeaseTerm:
    """The time for which one lease holds a writer's name.

    When it is over its ledgers stand still: up to their positions everything has
    been announced, and what is above is read from the tables by whoever takes
    the name again.

    :ivar ledgers: by stream
    :ivar incarnation: of the database's server
    :ivar is_over: the name was lost, or given free
    :ivar recovered: the writer's facts that were found when the name was taken
        again, once it was; all that the ledgers had not settled are among them
    """

    def __init__(
        self, lease: WriterLease, ledgers: Mapping[str, Ledger], incarnation: int = 1
    ) -> None:
        self.lease = lease
        self.ledgers = ledgers
        self.incarnation = incarnation
        self.is_over = False
        self.recovered: Facts | None = None
        # Not those that were rolled back, or whose tokens the ledgers know.
        self._in_flight: dict[InFlightWrite, None] = {}

    def begin(self, write: Write[object]) -> InFlightWrite:
        """A write that may append to this tenure's streams."""
        in_flight = InFlightWrite(write, self.ledgers)
        self._in_flight[in_flight] = None
        return in_flight

    def rolled_back(self, in_flight: InFlightWrite) -> None:
        """It has brought no token that will ever be written."""
        del self._in_flight[in_flight]
        if not self.is_over:
            for stream, request in in_flight.requests.items():
                self.ledgers[stream].abandon(request)

    def committed(self, in_flight: InFlightWrite, facts: Facts) -> None:
        """It has brought the tokens of these facts, which are still to be settled.

        Not for a tenure that is over, whose facts are found by others.

        :raises SequenceBehind: one of them was in use
        """
        for stream, request in in_flight.requests.items():
            tokens = [fact.token for fact in facts.get(stream, ())]
            self.ledgers[stream].reserved(request, tokens)
        del self._in_flight[in_flight]

    def outcome_of(self, in_flight: InFlightWrite) -> WriteOutcome:
        """What became of a write whose commit was not answered, now that facts were :attr:`recovered`.

        When the name was taken again, whatever of this tenure had entered as
        the writer was over, and whatever had not is fenced. So each write that
        could have been committed by then was complete, and shows it in ``possible``.
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
        """The found facts that this write may have written: nobody was told that they are another's.

        Its own are above the floors of its requests, which are open to this
        day; so the ledgers still know every token above them that they have heard of.
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
