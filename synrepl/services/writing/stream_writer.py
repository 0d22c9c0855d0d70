"""Appends facts as one writer: reserve, write, settle (invariants R1, R7, R8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Generic, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.writing.commit_listener import CommitListener
from synrepl.services.writing.commit_pipeline import (
    AppendGroup,
    AppendQueue,
    CommitPipeline,
    PendingAppend,
)
from synrepl.services.writing.lease_term import Facts
from synrepl.services.writing.outcome import FactRows, WriteOutcome
from synrepl.services.writing.reservation import Reservation, ReservationVoid
from synrepl.services.writing.writer_lease import LeaseKeeper
from synrepl.services.writing.writer_lease import WriterAway as WriterAway
from synrepl.storage.database import CommitUnknown, Record, Transaction
from synrepl.storage.outbox import KeptInMemory, Outbox
from synrepl.storage.short_work import Opening, ShortWork
from synrepl.storage.store import (
    AppendResult,
    DatabaseAway,
    Draft,
    Drained,
    FactStore,
    Fenced,
    TransactionResult,
    WriterLease,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row

T = TypeVar("T")

#: Maximum number of rows in the queue of one stream; further appends are refused.
MAX_QUEUED_ROWS = 200_000


class NotAWriter(Refused):
    """{writer!r} does not write stream {stream!r}; append at {writers}"""


class WriterDrained(Drained):
    """writer {writer!r} of stream {stream!r} is drained: it takes no new facts; append at {writers}, or let this one write again by 'synrepl writers add'"""


class AppendsWaiting(Unavailable):
    """{rows} rows already wait to be appended to {stream!r}; try again later"""


class EmptyAppend(InputError):
    """an append needs at least one fact"""


class NoStreams(InputError):
    """transaction {name!r} names no stream; name those that it may append to, or run it without a writer"""


class StreamWriter:
    """Appends facts to some streams as one writer.

    Appends that arrive while a transaction runs share the next one. If such a group fails,
    each append is retried alone, so that one caller's bad row harms nobody else.
    Transactions of callers (:meth:`transact`) run concurrently, each on its own.

    :param writer: the name of the writer; only one process at a time can hold its lease
    :param listener: is notified of settled tokens and facts, stream by stream, in order
    :param writers_of: returns the names of a stream's writers, for error messages
    :param refusals: by stream name, why the stream takes no facts at present
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        writer: str,
        streams: Iterable[Stream],
        listener: CommitListener,
        log: Logger,
        writers_of: Callable[[str], Sequence[str]] = lambda stream: (),
        refusals: Mapping[str, Refused] = MappingProxyType({}),
    ) -> None:
        self.writer = writer
        self._refusals = refusals
        self._writers_of = writers_of
        self._scheduler = scheduler
        self._store = store
        self._listener = listener
        self._queues = {stream.name: AppendQueue(stream) for stream in streams}
        self._lease = LeaseKeeper(scheduler, store, writer, self.streams, listener, log)
        self._commits = CommitPipeline(self._lease, listener)

    @property
    def streams(self) -> list[Stream]:
        """The streams that it writes."""
        return [queue.stream for queue in self._queues.values()]

    @property
    def is_open(self) -> bool:
        """Whether this process holds the writer's lease."""
        return self._lease.term is not None

    @property
    def refusal(self) -> Refused | None:
        """Why a lost lease cannot be acquired again; None while it is held or being acquired."""
        return self._lease.refusal

    def ledger(self, stream: str) -> Ledger:
        """The ledger of one stream, for status and metrics."""
        return self._lease.ledgers[stream]

    async def start(self) -> None:
        """Acquire the writer's lease and determine its position.

        :raises WriterTaken: another live process holds the lease
        """
        await self._lease.acquire()

    async def stop(self) -> None:
        """Release the writer name."""
        await self._lease.release()

    def failed_over(self, incarnation: int) -> None:
        """Another database server has taken over: acquire the lease there.

        :param incarnation: number of that server's incarnation
        """
        self._lease.failed_over(incarnation)

    async def skip_idle(self) -> None:
        """Advance to the position on record, which a master raises while this writer is idle.

        Only for a writer that its own process announces. The next process that announces
        this writer starts at the position on record or above (R2). The position may cover
        facts of a successor that this process does not know of yet; then the epoch has been
        raised, and nothing is done.

        :raises DatabaseAway: the position cannot be read now
        """
        term = self._lease.term
        streams = [stream for stream in self.streams if not stream.in_memory]
        if term is None or not streams:
            return
        seen = await self._store.observe(streams)
        self.failed_over(max(look.incarnation for look in seen.values()))
        for stream in streams:
            recorded = seen[stream.name].writers[self.writer]
            is_ours = recorded.epoch == term.lease.epoch(stream) and not term.is_over
            if is_ours and term.ledgers[stream.name].skip(recorded.position):
                self._listener.settled(stream, (), ())

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None = None
    ) -> AppendResult:
        """Append facts; returns once they are committed and announced.

        :param key: idempotency key; repeating a key returns the first answer
        :raises NotAWriter: :raises WriterAway: :raises AppendsWaiting: :raises WriterDrained:
        :raises KeyReused: :raises BadValue: :raises Fenced: :raises DatabaseAway:
        :raises WriterTaken: :raises WriterRemoved: the lease was lost and cannot be acquired again
        """
        queue = self._queue(stream)
        if not facts:
            raise EmptyAppend()
        self._lease.require()
        rows = sum(map(len, facts))
        if queue.rows + rows > MAX_QUEUED_ROWS and queue.rows:
            raise AppendsWaiting(rows=queue.rows, stream=stream.name)
        pending = PendingAppend(Draft(facts, key), rows, self._scheduler.promise())
        queue.put(pending)
        if not queue.busy:
            queue.busy = True
            self._scheduler.spawn(f"append to {stream.name}", self._pump(queue))
        with self._naming_others():
            return await pending.promise

    async def reserve(self, stream: Stream, count: int) -> Reservation:
        """Reserve ``count`` tokens before writing; use it as an ``async with`` block.

        :raises NotAWriter: :raises WriterAway: :raises Fenced: :raises WriterDrained:
        :raises DatabaseAway: :raises WriterTaken: :raises WriterRemoved:
        """
        self._queue(stream)
        term = self._lease.require()
        lease, ledger = term.lease, term.ledgers[stream.name]
        request = ledger.request()
        try:
            with self._naming_others():
                tokens = await lease.reserve(stream, count, ledger.seen)
            if not term.is_over:
                ledger.reserved(request, tokens)
        except BaseException:
            if not term.is_over:
                ledger.abandon(request)
            raise
        finally:
            if not term.is_over:
                self._commits.requests_closed([stream])
        return Reservation(self, lease, stream, tokens)

    async def transact(
        self,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
    ) -> TransactionResult[T]:
        """Run ``work`` in a database transaction that also appends facts as this writer.

        Each ``Outbox.append`` makes one fact, which is written after the work has returned.
        Returns the result of the work and the facts, once the transaction is committed and
        the facts are announced. (If the outcome of the commit was in doubt, the result may
        include other facts that were in doubt at that time.) ``work`` may run more than once,
        see :meth:`~synrepl.storage.database.Database.run`. Any number of transactions may run
        at once, and no position waits for the work. Cancelling the wait does not end the
        transaction.

        :param name: what the transaction does, for logs and errors
        :param streams: the streams that ``work`` may append to
        :raises NoStreams: :raises NotAWriter: :raises KeptInMemory: :raises WriterAway:
        :raises Fenced: :raises WriterDrained: :raises WriterTaken: :raises WriterRemoved:
        :raises DatabaseAway: nothing was changed or appended
        :raises CommitUnknown: it may have been committed; the rows were reported to
            :meth:`.CommitListener.outcome_unknown`
        """
        if not streams:
            raise NoStreams(name=name)
        for stream in streams:
            self._queue(stream)
            if stream.in_memory:
                raise KeptInMemory(stream=stream.name)
        once = {stream.name: stream for stream in streams}
        write = CallerTransaction(name, list(once.values()), work)
        answers: list[TransactionResult[T]] = []
        done = self._scheduler.promise()

        async def commit() -> None:
            try:
                answers.append(await self._commits.run(write))
            except GeneratorExit:
                raise  # this coroutine is discarded, so no other one is resumed
            except BaseException as error:
                done.errback(error)
            else:
                done.callback(None)

        self._scheduler.spawn(f"transact {name}", commit())
        with self._naming_others():
            await done
        return answers[0]

    # -- grouping -----------------------------------------------------------------------

    async def _pump(self, queue: AppendQueue) -> None:
        try:
            while group := queue.take():
                await self._commit(queue.stream, group)
        finally:
            queue.busy = False

    async def _commit(self, stream: Stream, group: list[PendingAppend]) -> None:
        try:
            drafts = [pending.draft for pending in group]
            answers = await self._commits.run(AppendGroup(self._commits, stream, drafts))
        except CommitUnknown as error:  # a retry might write twice
            for pending in group:
                pending.promise.errback(error)
        except SynreplError as error:
            if len(group) == 1:
                group[0].promise.errback(error)
                return
            for pending in group:
                await self._commit(stream, [pending])
        except Exception as error:  # a defect, but the callers must get an answer
            for pending in group:
                pending.promise.errback(error)
        else:
            for pending, written in zip(group, answers, strict=True):
                pending.promise.callback(written)

    def _queue(self, stream: Stream) -> AppendQueue:
        queue = self._queues.get(stream.name)
        if queue is None:
            others = self._others(stream.name) or "one of its writers"
            raise NotAWriter(writer=self.writer, stream=stream.name, writers=others)
        refusal = self._refusals.get(stream.name)
        if refusal is not None:
            raise type(refusal)(**refusal.facts)
        return queue

    def _others(self, stream: str) -> str:
        """The other writers of a stream, for error messages."""
        others = [name for name in self._writers_of(stream) if name != self.writer]
        return " or ".join(map(repr, others))

    @contextmanager
    def _naming_others(self) -> Iterator[None]:
        """Add the other writers to the database's error that this writer is drained."""
        try:
            yield
        except Drained as error:
            stream = str(error.facts["stream"])
            others = self._others(stream) or "another writer"
            raise WriterDrained(writer=self.writer, stream=stream, writers=others) from None

    # -- explicit reservations ----------------------------------------------------------

    async def write_reserved(
        self, lease: WriterLease, stream: Stream, facts: Sequence[Fact]
    ) -> None:
        """See :class:`.ReservingWriter`."""
        term = self._lease.term
        if term is None or lease is not term.lease:
            tokens = [fact.token for fact in facts]
            raise ReservationVoid(tokens=tokens, stream=stream.name, writer=self.writer)
        try:
            await lease.write(stream, facts)
        except CommitUnknown:
            self._commits.report_unknown([stream], {stream.name: [fact.rows for fact in facts]})
            self._lease.lost("the outcome of a commit is unknown", term)
            raise
        except Fenced as error:
            self._lease.lost(str(error), term)
            raise

    async def settle_reserved(
        self, lease: WriterLease, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]
    ) -> None:
        """See :class:`.ReservingWriter`."""
        term = self._lease.term
        if term is None or lease is not term.lease:
            self._commits.report_unknown([stream], {stream.name: [fact.rows for fact in facts]})
            return
        term.ledgers[stream.name].settle(tokens)
        self._listener.settled(stream, tokens, facts)
        with suppress(DatabaseAway):  # the session is lost, which also releases its reservations
            await lease.release(stream, tokens)


class CallerTransaction(Generic[T]):
    """Runs a caller's work in a transaction, and appends what it puts into the outbox.

    The result is what the work returned in the run that was committed, and its facts.
    Implements :class:`~.lease_term.Write`.

    :param name: what the transaction does, for logs and errors
    """

    def __init__(
        self, name: str, streams: Sequence[Stream], work: Callable[[Transaction, Outbox], T]
    ) -> None:
        self.streams = streams
        self._name = name
        self._work = work
        # Result of the last run that finished, the only one that can have been committed.
        # Set by a database thread.
        self._ran: tuple[T, Outbox] | None = None

    @property
    def certain(self) -> FactRows:
        """The contents of the outbox; empty until the work has returned."""
        ran = self._ran
        return {} if ran is None else ran[1].facts

    possible = certain

    async def commit(
        self, lease: WriterLease, begin: Callable[[], Mapping[str, Token]]
    ) -> TransactionResult[TransactionResult[T]]:
        """Run the work in a transaction; tokens are reserved only after it has returned."""
        done = await lease.transact(self._name, self.streams, self._captured(), begin)
        return TransactionResult(done, done.facts)

    async def resolve(
        self, outcome: WriteOutcome, found: Facts, error: CommitUnknown
    ) -> TransactionResult[T]:
        """The result and all facts in doubt, if the commit is proved."""
        if outcome is WriteOutcome.COMMITTED and self._ran is not None:
            return TransactionResult(
                self._ran[0], {name: facts for name, facts in found.items() if facts}
            )
        raise error

    def _captured(self) -> Callable[[Transaction, Outbox], T]:
        work = self._work
        return _CapturedShortWork(self, work) if isinstance(work, ShortWork) else self.run

    def run(self, txn: Transaction, outbox: Outbox) -> T:
        """Run the work, and keep its result."""
        self._ran = None
        result = self._work(txn, outbox)
        return self.ran(result, outbox)

    def ran(self, result: T, outbox: Outbox) -> T:
        """Keep the result of a run."""
        outbox.close()
        self._ran = result, outbox
        return result


class _CapturedShortWork(ShortWork[T]):
    """The work of a :class:`CallerTransaction`, each result of which is kept."""

    def __init__(self, transaction: CallerTransaction[T], work: ShortWork[T]) -> None:
        self._transaction = transaction
        self._work = work

    def __call__(self, txn: Transaction, outbox: Outbox) -> T:
        """Run the work as any other."""
        return self._transaction.run(txn, outbox)

    def opening(self, outbox: Outbox) -> Opening | None:
        """Prepare the opening."""
        return self._work.opening(outbox)

    def finish(self, txn: Transaction, outbox: Outbox, row: Record | None) -> T:
        """Do the rest."""
        return self._transaction.ran(self._work.finish(txn, outbox, row), outbox)
