"""Writes on their way from a caller to the database: queued, grouped, committed, settled (R1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from synrepl.core.clock import Promise
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.positions.ledger import SequenceBehind
from synrepl.services.writing.commit_listener import CommitListener
from synrepl.services.writing.lease_term import Facts, InFlightWrite, LeaseTerm, Write
from synrepl.services.writing.outcome import FactRows, WriteOutcome, rows_key
from synrepl.services.writing.writer_lease import LeaseKeeper, WriterAway
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import (
    AppendResult,
    Draft,
    Fenced,
    NotConfirmed,
    TransactionResult,
    WriterLease,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row

T = TypeVar("T")

#: Maximum number of rows in one group of appends.
GROUP_ROWS = 5_000


class PendingAppend:
    """A draft that waits for its transaction, and the promise of its answer."""

    __slots__ = ("draft", "promise", "rows")

    def __init__(self, draft: Draft, rows: int, promise: Promise[AppendResult]) -> None:
        self.draft = draft
        self.rows = rows
        self.promise = promise


class AppendQueue:
    """The appends that wait for one stream's next transaction.

    :ivar rows: number of rows in the queue
    :ivar busy: True while a task is emptying the queue
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.rows = 0
        self.busy = False
        self._pending: deque[PendingAppend] = deque()

    def put(self, pending: PendingAppend) -> None:
        """Add an append at the end."""
        self._pending.append(pending)
        self.rows += pending.rows

    def take(self) -> list[PendingAppend]:
        """Remove the next group: at most :data:`GROUP_ROWS`, and no idempotency key twice.

        A single append may be larger.
        """
        group: list[PendingAppend] = []
        keys: set[str] = set()
        rows = 0
        while self._pending:
            pending = self._pending[0]
            if group and (rows + pending.rows > GROUP_ROWS or pending.draft.key in keys):
                break
            group.append(self._pending.popleft())
            rows += pending.rows
            self.rows -= pending.rows
            if pending.draft.key is not None:
                keys.add(pending.draft.key)
        return group


class CommitPipeline:
    """Commits the writes of one writer, any number at once, and reports their facts as settled.

    :param lease: the writer's lease
    :param listener: is notified of the outcome of every write
    """

    def __init__(self, lease: LeaseKeeper, listener: CommitListener) -> None:
        self._lease = lease
        self._listener = listener

    @property
    def writer(self) -> str:
        """The name of the writer."""
        return self._lease.writer

    async def run(self, write: Write[T]) -> T:
        """Commit a write; returns once it is committed and announced.

        When the answer to the COMMIT is lost and the write is proved to have been rolled
        back, it is run again. So the caller sees a lost connection only when neither
        outcome can be proved.

        :raises CommitUnknown: the write may have been committed
        :raises WriterAway: nothing was written; also whatever the write itself raises
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
                    # The session is with a server that was replaced, or that hangs. It has
                    # not reported the loss of the lease and may never do so.
                    self._lease.lost(str(error), term)
                if not term.is_over:
                    self.requests_closed(write.streams)
                elif isinstance(error, Fenced):
                    raise WriterAway(writer=self._lease.writer) from error
                raise
            self._settle(term, in_flight, done.facts)
            return done.result

    def requests_closed(self, streams: Sequence[Stream]) -> None:
        """Let positions advance that were held back only by a request which is now closed."""
        for stream in streams:
            self._listener.settled(stream, (), ())

    def report_unknown(self, streams: Sequence[Stream], facts: FactRows) -> None:
        """Report facts that may have been committed and are not announced."""
        for stream in streams:
            rows = [row for fact in facts.get(stream.name, ()) for row in fact]
            if rows:
                self._listener.outcome_unknown(stream, rows)

    async def _resolve_outcome(
        self, term: LeaseTerm, in_flight: InFlightWrite, error: CommitUnknown
    ) -> WriteOutcome:
        """Find the outcome of a write whose COMMIT was not answered.

        Its requests stay open, so no position passes what it may have written. Acquiring
        the lease again shows which facts are in the tables.
        """
        self.report_unknown(in_flight.write.streams, in_flight.write.possible)
        self._lease.lost("the outcome of a commit is unknown", term)
        await self._lease.reacquired(term, error)
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
            # Recovery finds and announces them, perhaps after the caller has gone on.
            self.report_unknown(
                streams, {name: [fact.rows for fact in facts[name]] for name in facts}
            )
            return
        for stream in streams:
            mine = facts.get(stream.name, ())
            tokens = [fact.token for fact in mine]
            # Reported before the next stream is settled: no position may be seen without its facts.
            term.ledgers[stream.name].settle(tokens)
            self._listener.settled(stream, tokens, mine)


class AppendGroup:
    """Appends of several callers to one stream, in one transaction.

    The result is one answer per draft, in order. Implements :class:`~.lease_term.Write`.
    """

    def __init__(self, commits: CommitPipeline, stream: Stream, drafts: Sequence[Draft]) -> None:
        self.streams = [stream]
        self._commits = commits
        self._stream = stream
        self._drafts = drafts

    @property
    def certain(self) -> FactRows:
        """The facts without an idempotency key; those with one may have been committed before."""
        return {self._stream.name: self._without_key}

    @property
    def possible(self) -> FactRows:
        """All facts."""
        return {self._stream.name: [rows for draft in self._drafts for rows in draft.facts]}

    async def commit(
        self, lease: WriterLease, begin: Callable[[], Mapping[str, Token]]
    ) -> TransactionResult[Sequence[AppendResult]]:
        """Append the drafts."""
        answers = await lease.append(self._stream, self._drafts, begin()[self._stream.name])
        facts = [
            Fact(token, lease.writer, tuple(rows))
            for draft, written in zip(self._drafts, answers, strict=True)
            if not written.replayed
            for token, rows in zip(written.tokens, draft.facts, strict=True)
        ]
        return TransactionResult(answers, {self._stream.name: facts})

    async def resolve(
        self, outcome: WriteOutcome, found: Facts, error: CommitUnknown
    ) -> Sequence[AppendResult]:
        """The answers, with tokens from two sources.

        Drafts with an idempotency key are appended again, which returns the first answer.
        The tokens of the others are taken from the facts that were found. The number of
        facts proves that they were committed. *Which* of the found facts they are is known
        only when no other fact in doubt has the same rows.
        """
        if self._without_key and outcome is not WriteOutcome.COMMITTED:
            raise error
        try:
            answers = {
                n: await self._append_again(draft)
                for n, draft in enumerate(self._drafts)
                if draft.key is not None
            }
        except SynreplError:  # which says nothing about the first attempt
            raise error from None
        with_key = {token for written in answers.values() for token in written.tokens}
        wanted = [rows_key(rows) for rows in self._without_key]
        left = [
            (fact.token, rows_key(fact.rows))
            for fact in found[self._stream.name]
            if fact.token not in with_key
        ]
        mine = [(token, rows) for token, rows in left if rows in wanted]
        if [rows for _, rows in mine] != wanted:
            raise error
        tokens = (token for token, _ in mine)
        for n, draft in enumerate(self._drafts):
            if n not in answers:
                answers[n] = AppendResult([next(tokens) for _ in draft.facts], self._commits.writer)
        return [answers[n] for n in range(len(self._drafts))]

    @property
    def _without_key(self) -> list[Sequence[Row]]:
        return [rows for draft in self._drafts if draft.key is None for rows in draft.facts]

    async def _append_again(self, draft: Draft) -> AppendResult:
        """Append a draft with a key; if it was committed before, the answer is that of then."""
        (written,) = await self._commits.run(AppendGroup(self._commits, self._stream, [draft]))
        return written
