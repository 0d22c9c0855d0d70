"""Appending facts as one writer: reserve, write, settle (invariants R1, R7, R8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.writing.append_group import AppendGroup
from synrepl.services.writing.append_queue import AppendQueue, PendingAppend
from synrepl.services.writing.commit_listener import CommitListener as CommitListener
from synrepl.services.writing.commits import CommitPipeline
from synrepl.services.writing.reservation import Reservation, ReservationVoid
from synrepl.services.writing.transact import CallerTransaction
from synrepl.services.writing.writer_lease import LeaseKeeper
from synrepl.services.writing.writer_lease import WriterAway as WriterAway
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.storage.outbox import KeptInMemory, Outbox
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

#: Rows that may wait to be appended to one stream before callers are refused.
WAITING_ROWS = 200_000


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

    Appends that arrive while a transaction runs are grouped into the next one.
    If a group fails, each of its members is tried alone, so that one caller's
    bad row harms nobody else. Transactions of callers (:meth:`transact`) run
    beside them, each on its own.

    :param writer: the name, of which only one process at a time may be
    :param settled: told what became settled, stream by stream, in order
    :param writers_of: the names of a stream's writers, for callers who must go there
    :param refusals: why a stream takes no facts at present, by name of the stream
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        writer: str,
        streams: Iterable[Stream],
        settled: CommitListener,
        log: Logger,
        writers_of: Callable[[str], Sequence[str]] = lambda stream: (),
        refusals: Mapping[str, Refused] = MappingProxyType({}),
    ) -> None:
        self.writer = writer
        self._refusals = refusals
        self._writers_of = writers_of
        self._scheduler = scheduler
        self._store = store
        self._settled = settled
        self._queues = {stream.name: AppendQueue(stream) for stream in streams}
        self._lease = LeaseKeeper(scheduler, store, writer, self.streams, settled, log)
        self._commits = CommitPipeline(self._lease, settled)

    @property
    def streams(self) -> list[Stream]:
        """The streams it writes."""
        return [queue.stream for queue in self._queues.values()]

    @property
    def is_open(self) -> bool:
        """True while the writer's name is ours."""
        return self._lease.term is not None

    @property
    def refusal(self) -> Refused | None:
        """Why the name, which was lost, is not had again; None while it may come back by itself."""
        return self._lease.refusal

    def ledger(self, stream: str) -> Ledger:
        """The ledger of one stream, for status and metrics."""
        return self._lease.ledgers[stream]

    async def start(self) -> None:
        """Take the writer's name and find out where it stood.

        :raises WriterTaken: another live process has the name
        """
        await self._lease.acquire()

    async def stop(self) -> None:
        """Give the name free."""
        await self._lease.release()

    def failed_over(self, incarnation: int) -> None:
        """Another server of the database has taken over: take the name there.

        :param incarnation: of that server
        """
        self._lease.failed_over(incarnation)

    async def skip_idle(self) -> None:
        """Go on to where a master has put this writer, because all is settled up to there.

        For a writer that is announced by its own process. The position on record is what
        the next one to announce it says at least (R2). It may cover facts of a successor,
        of whom this process has not heard yet: then the epoch has been raised.

        :raises DatabaseAway: there is no telling now
        """
        term = self._lease.term
        streams = [stream for stream in self.streams if not stream.in_memory]
        if term is None or not streams:
            return
        seen = await self._store.observe(streams)
        self.failed_over(max(look.incarnation for look in seen.values()))
        for stream in streams:
            us = seen[stream.name].writers[self.writer]
            still = us.epoch == term.lease.epoch(stream) and not term.is_over
            if still and term.ledgers[stream.name].skip(us.position):
                self._settled.settled(stream, (), ())

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None = None
    ) -> AppendResult:
        """Append facts; returns once they are committed and announced.

        :param key: idempotency key: the same key again gets the same answer
        :raises NotAWriter: :raises WriterAway: :raises AppendsWaiting: :raises WriterDrained:
        :raises KeyReused: :raises BadValue: :raises Fenced: :raises DatabaseAway:
        :raises WriterTaken: :raises WriterRemoved: the name was lost, and cannot be had again
        """
        queue = self._queue(stream)
        if not facts:
            raise EmptyAppend()
        self._lease.require()
        rows = sum(map(len, facts))
        if queue.rows + rows > WAITING_ROWS and queue.rows:
            raise AppendsWaiting(rows=queue.rows, stream=stream.name)
        waiting = PendingAppend(Draft(facts, key), rows, self._scheduler.promise())
        queue.put(waiting)
        if not queue.busy:
            queue.busy = True
            self._scheduler.spawn(f"append to {stream.name}", self._pump(queue))
        with self._naming_others():
            return await waiting.promise

    async def reserve(self, stream: Stream, count: int) -> Reservation:
        """Take ``count`` tokens before writing; to be used as an ``async with`` block.

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
        """Run ``work`` in one transaction of the database, and append with it, as this writer.

        Each ``Outbox.append`` makes one fact, after the work and only if it is
        committed. Returns what the work returned and the facts, once the transaction
        is committed and they are announced (after a commit that was in doubt, perhaps
        with other facts that were in doubt then). ``work`` may run more than once,
        as :meth:`~synrepl.storage.database.Database.run` says. Any number may
        run at once, and no position waits for the work. A caller who stops waiting
        does not end it.

        :param name: what it does, for logs and errors
        :param streams: those that ``work`` may append to
        :raises NoStreams: :raises NotAWriter: :raises KeptInMemory: :raises WriterAway:
        :raises Fenced: :raises WriterDrained: :raises WriterTaken: :raises WriterRemoved:
        :raises DatabaseAway: nothing was changed, nor appended
        :raises CommitUnknown: it may have been committed; ``CommitListener.outcome_unknown`` was told of the rows
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

        async def carry_out() -> None:
            try:
                answers.append(await self._commits.run(write))
            except BaseException as error:
                done.errback(error)
            else:
                done.callback(None)

        self._scheduler.spawn(f"transact {name}", carry_out())
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
            drafts = [waiting.draft for waiting in group]
            answers = await self._commits.run(AppendGroup(self._commits, stream, drafts))
        except CommitUnknown as error:  # to try again would be to write twice
            for waiting in group:
                waiting.promise.errback(error)
        except SynreplError as error:
            if len(group) == 1:
                group[0].promise.errback(error)
                return
            for waiting in group:
                await self._commit(stream, [waiting])
        except Exception as error:  # a defect: the callers must hear of it all the same
            for waiting in group:
                waiting.promise.errback(error)
        else:
            for waiting, written in zip(group, answers, strict=True):
                waiting.promise.callback(written)

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
        """Who else writes a stream, for a person."""
        others = [name for name in self._writers_of(stream) if name != self.writer]
        return " or ".join(map(repr, others))

    @contextmanager
    def _naming_others(self) -> Iterator[None]:
        """The database says that this writer is drained; who else there is, we know."""
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
        """For :class:`Reservation`."""
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
        """For :class:`Reservation`."""
        term = self._lease.term
        if term is None or lease is not term.lease:
            self._commits.report_unknown([stream], {stream.name: [fact.rows for fact in facts]})
            return
        term.ledgers[stream.name].settle(tokens)
        self._settled.settled(stream, tokens, facts)
        with suppress(DatabaseAway):  # the session is lost, and its reservations with it
            await lease.release(stream, tokens)
