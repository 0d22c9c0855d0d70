"""A writer's name: taken at the start, and taken back whenever it is lost (invariant R8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import Refused, SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import MAX_TOKEN, Range
from synrepl.positions.ledger import Ledger
from synrepl.services.sources import surviving_page
from synrepl.services.writing.append_queue import GROUP_ROWS
from synrepl.services.writing.commit_listener import CommitListener
from synrepl.services.writing.lease_term import LeaseTerm
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import FactStore, Observation, Page
from synrepl.streams.definition import Fact, Stream

_BACK_OFF = BackOff(0.1, 2.0)


class WriterAway(Unavailable):
    """writer {writer!r} has lost its session with the database and is taking its name back; try again"""


class LeaseKeeper:
    """The name of one writer of some streams, of which only one process at a time may be.

    :ivar ledgers: by stream; of the present tenure, or of the last one
    :ivar refusal: why the name that was lost is not had again, once it has been refused
        twice; somebody has to do something about it, and it is tried all the same
    :param settled: told where the writer stands, and what is found when the name is taken back
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        writer: str,
        streams: Sequence[Stream],
        settled: CommitListener,
        log: Logger,
    ) -> None:
        self.writer = writer
        self.ledgers: Mapping[str, Ledger] = {}
        self._scheduler = scheduler
        self._store = store
        self._streams = streams
        self._settled = settled
        self._log = log
        self._tenure: LeaseTerm | None = None
        self.refusal: Refused | None = None
        self._released = False
        #: Of the database's server, by stream.
        self._incarnations: dict[str, int] = {}
        # Who waits for the name to be taken back after a tenure, with what they hear
        # if it never is.
        self._waiting: dict[LeaseTerm, list[tuple[Promise[None], CommitUnknown]]] = {}

    @property
    def term(self) -> LeaseTerm | None:
        """While the name is ours."""
        return self._tenure

    def require(self) -> LeaseTerm:
        """The present tenure.

        :raises WriterAway: there is none now
        :raises Refused: nor will there be by itself; see :attr:`refusal`
        """
        if self._tenure is None and self.refusal is not None:
            raise type(self.refusal)(**self.refusal.facts)
        if self._tenure is None:
            raise WriterAway(writer=self.writer)
        return self._tenure

    async def acquire(self) -> None:
        """Take the name and find out where its writer stood.

        :raises WriterTaken: another live process has the name
        """
        await self._open(None)

    async def release(self) -> None:
        """Let others take the name."""
        self._released = True
        waiting, self._waiting = self._waiting, {}
        for promise, error in chain.from_iterable(waiting.values()):
            promise.errback(error)
        term, self._tenure = self._tenure, None
        if term is not None:
            term.is_over = True
            await term.lease.close()

    def failed_over(self, incarnation: int) -> None:
        """Another server has taken over: the name is not held there."""
        term = self._tenure
        if term is not None and term.incarnation < incarnation:
            self.lost("the database failed over", term)

    def lost(self, reason: str, term: LeaseTerm) -> None:
        """A tenure is over although the name was not given free: take it back."""
        if term.is_over:
            return
        term.is_over, self._tenure = True, None
        self._log.warn(
            "writer {writer} lost its session ({reason}); taking the name back",
            writer=self.writer,
            reason=reason,
        )
        self._scheduler.spawn(f"reopen writer {self.writer}", self._reopen(term))

    async def retaken(self, term: LeaseTerm, error: CommitUnknown) -> None:
        """Wait until the name has been taken again after a tenure that was lost.

        :raises CommitUnknown: ``error``, when it was given free instead
        """
        if term.recovered is not None:
            return
        if self._released:
            raise error
        promise: Promise[None] = self._scheduler.promise()
        self._waiting.setdefault(term, []).append((promise, error))
        await promise

    async def _reopen(self, lost: LeaseTerm) -> None:
        with suppress(SynreplError):  # it was lost
            await lost.lease.close()
        retry = Retry(_BACK_OFF, self._scheduler.random)
        before: type[SynreplError] | None = None
        while not self._released:
            try:
                await self._open(lost)
                self.refusal = None
                self._log.info("writer {writer} has its name back", writer=self.writer)
                return
            except SynreplError as error:
                # Once may be our own session, which the database has not yet seen the end of.
                again = isinstance(error, Refused) and type(error) is before
                self.refusal = error if isinstance(error, Refused) and again else None
                before = type(error)
                self._log.warn("cannot reopen writer: {error}", error=error)
                await self._scheduler.sleep(retry.failed())

    async def _open(self, lost: LeaseTerm | None) -> None:
        lease = await self._store.open_writer(self.writer, self._streams)
        ledgers: dict[str, Ledger] = {}
        failed_over: set[str] = set()
        found: dict[str, list[Fact]] = {}
        try:
            seen = await self._store.observe(self._streams)
            for stream in self._streams:
                name = stream.name
                incarnation = seen[name].incarnation
                if incarnation > self._incarnations.setdefault(name, incarnation):
                    failed_over.add(name)
                again = name in failed_over
                ledgers[name], found[name] = await self._recover(stream, seen[name], again)
        except BaseException:
            await lease.close()
            raise
        if self._released:  # meanwhile
            await lease.close()
            return
        self.ledgers = ledgers
        self._incarnations = {name: look.incarnation for name, look in seen.items()}
        newest = max(self._incarnations.values(), default=1)
        term = self._tenure = LeaseTerm(lease, ledgers, newest)
        for stream in self._streams:
            name = stream.name
            if name in failed_over:
                self._settled.failed_over(stream, self.writer, ledgers[name], seen[name])
                continue
            self._settled.lease_acquired(stream, self.writer, ledgers[name])
            if lost is not None:
                self._settled.recovered(stream, found[name])
        lease.on_lost(lambda reason: self.lost(reason, term))  # perhaps it is by now
        if lost is not None:
            lost.recovered = found
            for promise, _ in self._waiting.pop(lost, ()):
                promise.callback(None)

    async def _recover(
        self, stream: Stream, seen: Observation, failed_over: bool
    ) -> tuple[Ledger, list[Fact]]:
        """Where the writer stands according to the store, and its facts not announced yet.

        The table is read to its end: after a failover the sequence may be behind it.
        """
        before = self.ledgers.get(stream.name)
        facts: list[Fact] = []
        if before is not None:
            page = Page((), before.position, is_limited=True)
            while page.is_limited:
                span = Range(page.upto, MAX_TOKEN)
                page = await surviving_page(self._store, stream, span, self.writer, GROUP_ROWS)
                facts += page.facts
        if before is None or failed_over:
            reached = await self._store.reached(stream, Range(seen.recorded, MAX_TOKEN))
            mine = seen.writers[self.writer].position
            # Nothing of ours is open, so all up to the last token is settled. Less might
            # be less than was published: rolled back tokens leave no trace in the table.
            position = max(mine, reached.get(self.writer, 0), seen.last)
        else:
            position = facts[-1].token if facts else before.position
        ledger = Ledger(position)
        known = 0 if before is None or failed_over else before.seen
        ledger.saw(max(seen.last, known))
        return ledger, facts
