"""Appending facts as one writer: reserve, write, settle (invariants R1, R7, R8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.positions.ledger import Ledger, Request, SequenceBehind
from synrepl.services.announce import Log
from synrepl.services.append_queue import GROUP_ROWS, AppendQueue, Waiting
from synrepl.services.reservation import Reservation, ReservationVoid
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import (
    DatabaseAway,
    Draft,
    FactStore,
    Fenced,
    Observation,
    Page,
    WriterLease,
    Written,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row

#: Rows that may wait to be appended to one stream before callers are refused.
WAITING_ROWS = 200_000

_BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


#: Facts by stream.
_Found = Mapping[str, Sequence[Fact]]


class NotAWriter(Refused):
    """{writer!r} does not write stream {stream!r}; append at one of its writers"""


class WriterAway(Unavailable):
    """writer {writer!r} has lost its session with the database and is taking its name back; try again"""


class AppendsWaiting(Unavailable):
    """{rows} rows already wait to be appended to {stream!r}; try again later"""


class EmptyAppend(InputError):
    """an append needs at least one fact"""


class Settled(Protocol):
    """Whoever announces what this writer settles."""

    def adopt(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer stands at ``ledger.position`` and goes on from there."""

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """``tokens`` are settled; ``facts`` are the ones among them that were committed."""

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Facts of this writer that were found committed after its session was lost."""


class StreamWriter:
    """Appends facts to some streams as one writer.

    Appends that arrive while a transaction runs are grouped into the next one.
    If a group fails, each of its members is tried alone, so that one caller's
    bad row harms nobody else.

    :param writer: the name, of which only one process at a time may be
    :param settled: told what became settled, stream by stream, in order
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        writer: str,
        streams: Iterable[Stream],
        settled: Settled,
        log: Log,
    ) -> None:
        self.writer = writer
        self._scheduler = scheduler
        self._store = store
        self._settled = settled
        self._log = log
        self._queues = {stream.name: AppendQueue(stream) for stream in streams}
        self._ledgers: dict[str, Ledger] = {}
        self._lease: WriterLease | None = None
        self._closed = False
        # The lease that was lost and is being replaced, the one that was before it,
        # what was found in the tables then, and who waits for that.
        self._losing: WriterLease | None = None
        self._replaced: WriterLease | None = None
        self._found: _Found = {}
        self._waiting_for_name: list[tuple[Promise[_Found], CommitUnknown]] = []

    @property
    def streams(self) -> list[Stream]:
        """The streams it writes."""
        return [queue.stream for queue in self._queues.values()]

    @property
    def open(self) -> bool:
        """True while the writer's name is ours."""
        return self._lease is not None

    def ledger(self, stream: str) -> Ledger:
        """The ledger of one stream, for status and metrics."""
        return self._ledgers[stream]

    async def start(self) -> None:
        """Take the writer's name and find out where it stood.

        :raises WriterTaken: another live process has the name
        """
        await self._open()

    async def stop(self) -> None:
        """Give the name free."""
        self._closed = True
        waiting, self._waiting_for_name = self._waiting_for_name, []
        for promise, error in waiting:
            promise.errback(error)
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.close()

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None = None
    ) -> Written:
        """Append facts; returns once they are committed and announced.

        :param key: idempotency key: the same key again gets the same answer
        :raises NotAWriter: :raises WriterAway: :raises AppendsWaiting:
        :raises KeyReused: :raises BadValue: :raises Fenced: :raises DatabaseAway:
        """
        queue = self._queue(stream)
        if not facts:
            raise EmptyAppend()
        self._require_lease()
        rows = sum(map(len, facts))
        if queue.rows + rows > WAITING_ROWS and queue.rows:
            raise AppendsWaiting(rows=queue.rows, stream=stream.name)
        waiting = Waiting(Draft(facts, key), rows, self._scheduler.promise())
        queue.put(waiting)
        if not queue.busy:
            queue.busy = True
            self._scheduler.spawn(f"append to {stream.name}", self._pump(queue))
        return await waiting.promise

    async def reserve(self, stream: Stream, count: int) -> Reservation:
        """Take ``count`` tokens before writing; to be used as an ``async with`` block.

        :raises NotAWriter: :raises WriterAway: :raises Fenced: :raises DatabaseAway:
        """
        self._queue(stream)
        lease, ledger = self._require_lease(), self._ledgers[stream.name]
        request = ledger.request()
        try:
            tokens = await lease.reserve(stream, count, ledger.seen)
            ledger.reserved(request, tokens)
        except BaseException:
            self._abandon(lease, stream, ledger, request)
            raise
        self._moved(lease, stream)
        return Reservation(self, lease, stream, tokens)

    # -- grouping -----------------------------------------------------------------------

    async def _pump(self, queue: AppendQueue) -> None:
        try:
            while group := queue.take():
                await self._commit(queue.stream, group)
        finally:
            queue.busy = False

    async def _commit(self, stream: Stream, group: list[Waiting]) -> None:
        try:
            answers = await self._write(stream, [waiting.draft for waiting in group])
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

    async def _write(self, stream: Stream, drafts: list[Draft]) -> Sequence[Written]:
        lease, ledger = self._require_lease(), self._ledgers[stream.name]
        request = ledger.request()
        try:
            answers = await lease.append(stream, drafts, ledger.seen)
        except CommitUnknown as error:
            # The request stays open, so nothing passes what it may have written;
            # taking the name again finds out what is in the table.
            taken_back = self._taken_back(lease, error)
            self._lost("the outcome of a commit is unknown", lease)
            found = await taken_back
            return await self._outcome(stream, drafts, ledger, found[stream.name], error)
        except Fenced as error:
            self._abandon(lease, stream, ledger, request)
            if lease is self._lease:
                raise
            raise WriterAway(writer=self.writer) from error  # it was us: stopping, or starting over
        except BaseException:
            self._abandon(lease, stream, ledger, request)
            raise
        if lease is not self._lease:
            return answers  # taken in by the recovery
        facts = [
            Fact(token, self.writer, tuple(rows))
            for draft, written in zip(drafts, answers, strict=True)
            if not written.replayed
            for token, rows in zip(written.tokens, draft.facts, strict=True)
        ]
        tokens = [fact.token for fact in facts]
        try:
            ledger.reserved(request, tokens)
        except SequenceBehind as error:
            self._lost(str(error), lease)
            return answers
        ledger.settle(tokens)
        self._settled.settled(stream, tokens, facts)
        return answers

    async def _outcome(
        self,
        stream: Stream,
        drafts: list[Draft],
        ledger: Ledger,
        found: Sequence[Fact],
        error: CommitUnknown,
    ) -> Sequence[Written]:
        """What became of drafts whose commit was not answered.

        Whoever takes the name again waits until nothing of its predecessor can
        still commit, and then reads what is in the table. Of that, all that the
        ledger had not heard of is what these drafts wrote: a stream has one
        appending transaction at a time.
        """
        fresh = [fact for fact in found if not ledger.knows(fact.token)]
        if not fresh and all(rows for draft in drafts for rows in draft.facts):
            return await self._write(stream, drafts)  # it was rolled back
        answers: list[Written] = []
        for draft in drafts:
            if draft.key is not None:
                answers += await self._write(stream, [draft])  # the key was committed with it
            elif [fact.rows for fact in fresh[: len(draft.facts)]] == [*map(tuple, draft.facts)]:
                answers.append(Written([fact.token for fact in fresh[: len(draft.facts)]]))
            else:
                raise error
            if fresh and fresh[0].token in answers[-1].tokens:
                del fresh[: len(draft.facts)]
        return answers

    def _taken_back(self, lost: WriterLease, error: CommitUnknown) -> Promise[_Found]:
        """The own facts that are found, or were, when the name is taken back after ``lost``."""
        promise: Promise[_Found] = self._scheduler.promise()
        if lost is self._lease and not self._closed:
            self._waiting_for_name.append((promise, error))
        elif lost is self._replaced and self._lease is not None:
            promise.callback(self._found)
        elif lost is self._losing:
            self._waiting_for_name.append((promise, error))
        else:
            promise.errback(error)
        return promise

    def _abandon(
        self, lease: WriterLease, stream: Stream, ledger: Ledger, request: Request
    ) -> None:
        ledger.abandon(request)
        self._moved(lease, stream)

    def _moved(self, lease: WriterLease, stream: Stream) -> None:
        """A request is closed: what was settled meanwhile may have waited for just that."""
        if lease is self._lease:
            self._settled.settled(stream, (), ())

    # -- the name ---------------------------------------------------------------------------

    async def _open(self) -> None:
        lease = await self._store.open_writer(self.writer, self.streams)
        found: dict[str, tuple[Ledger, list[Fact]]] = {}
        try:
            seen = await self._store.observe(self.streams)
            for stream in self.streams:
                found[stream.name] = await self._recover(stream, seen[stream.name])
        except BaseException:
            await lease.close()
            raise
        if self._closed:  # stopped meanwhile
            await lease.close()
            return
        self._lease = lease
        lease.on_lost(lambda reason: self._lost(reason, lease))
        for stream in self.streams:
            ledger, facts = found[stream.name]
            first = stream.name not in self._ledgers
            self._ledgers[stream.name] = ledger
            self._settled.adopt(stream, self.writer, ledger)
            if not first:
                self._settled.recovered(stream, facts)
        self._found = {name: facts for name, (_, facts) in found.items()}
        self._replaced, self._losing = self._losing, None
        waiting, self._waiting_for_name = self._waiting_for_name, []
        for promise, _ in waiting:
            promise.callback(self._found)

    async def _recover(self, stream: Stream, seen: Observation) -> tuple[Ledger, list[Fact]]:
        """Where the writer stands according to the store, and its facts not announced yet.

        The table is read to its end: after a failover the sequence may be behind it.
        """
        before = self._ledgers.get(stream.name)
        facts: list[Fact] = []
        if before is None:
            reached = await self._store.reached(stream, Range(seen.recorded, MAX_TOKEN))
            mine = seen.writers[self.writer].position
            # Nothing of ours is open, so all up to the last token is settled. Less might
            # be less than was published: rolled back tokens leave no trace in the table.
            position = max(mine, reached.get(self.writer, 0), seen.last)
        else:
            page = Page((), before.position, limited=True)
            while page.limited:
                span = Range(page.upto, MAX_TOKEN)
                page = await self._store.page(stream, span, self.writer, GROUP_ROWS)
                facts += page.facts
            position = facts[-1].token if facts else before.position
        ledger = Ledger(position)
        ledger.saw(seen.last if before is None else max(seen.last, before.seen))
        return ledger, facts

    def _lost(self, reason: str, lease: WriterLease) -> None:
        if self._closed or lease is not self._lease:
            return
        self._lease, self._losing = None, lease
        self._log.warn(
            "writer {writer} lost its session ({reason}); taking the name back",
            writer=self.writer,
            reason=reason,
        )
        self._scheduler.spawn(f"reopen writer {self.writer}", self._reopen(lease))

    async def _reopen(self, lost: WriterLease) -> None:
        with suppress(SynreplError):  # it was lost
            await lost.close()
        attempt = 0
        while not self._closed:
            try:
                await self._open()
                self._log.info("writer {writer} has its name back", writer=self.writer)
                return
            except SynreplError as error:
                self._log.warn("cannot reopen writer: {error}", error=error)
                await self._scheduler.sleep(_BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)])
                attempt += 1

    def _require_lease(self) -> WriterLease:
        if self._lease is None:
            raise WriterAway(writer=self.writer)
        return self._lease

    def _queue(self, stream: Stream) -> AppendQueue:
        queue = self._queues.get(stream.name)
        if queue is None:
            raise NotAWriter(writer=self.writer, stream=stream.name)
        return queue

    # -- explicit reservations ----------------------------------------------------------

    async def write_reserved(
        self, lease: WriterLease, stream: Stream, facts: Sequence[Fact]
    ) -> None:
        """For :class:`Reservation`."""
        if lease is not self._lease:
            tokens = [fact.token for fact in facts]
            raise ReservationVoid(tokens=tokens, stream=stream.name, writer=self.writer)
        try:
            await lease.write(stream, facts)
        except CommitUnknown:
            self._lost("the outcome of a commit is unknown", lease)
            raise

    async def settle_reserved(
        self, lease: WriterLease, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]
    ) -> None:
        """For :class:`Reservation`."""
        if lease is not self._lease:
            return
        self._ledgers[stream.name].settle(tokens)
        self._settled.settled(stream, tokens, facts)
        with suppress(DatabaseAway):  # the session is lost, and its reservations with it
            await lease.release(stream, tokens)
