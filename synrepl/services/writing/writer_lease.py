"""Holding a writer's lease: acquired at the start, and again whenever it is lost (R8)."""

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
from synrepl.services.writing.commit_listener import CommitListener
from synrepl.services.writing.lease_term import LeaseTerm
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import FactStore, Observation, Page
from synrepl.streams.definition import Fact, Stream

_BACK_OFF = BackOff(0.1, 2.0)

#: Rows read at a time when the lease is acquired again.
_RECOVERY_PAGE_ROWS = 5_000


class WriterAway(Unavailable):
    """writer {writer!r} has lost its session with the database and is taking its name back; try again"""


class LeaseKeeper:
    """Holds the lease of one writer, which only one process at a time can have.

    :param listener: is notified of the writer's position and of recovered facts
    :ivar ledgers: by stream; of the current term, or of the last one
    :ivar refusal: why a lost lease cannot be acquired again, after two refusals in a row.
        It needs an operator; attempts continue all the same
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        writer: str,
        streams: Sequence[Stream],
        listener: CommitListener,
        log: Logger,
    ) -> None:
        self.writer = writer
        self.ledgers: Mapping[str, Ledger] = {}
        self._scheduler = scheduler
        self._store = store
        self._streams = streams
        self._listener = listener
        self._log = log
        self._term: LeaseTerm | None = None
        self.refusal: Refused | None = None
        self._released = False
        #: Incarnation of the database server, by stream.
        self._incarnations: dict[str, int] = {}
        # Callers waiting for the lease to be acquired again after a term, each with the
        # error to raise if it never is.
        self._waiting: dict[LeaseTerm, list[tuple[Promise[None], CommitUnknown]]] = {}

    @property
    def term(self) -> LeaseTerm | None:
        """The current term; None while the lease is not held."""
        return self._term

    def require(self) -> LeaseTerm:
        """The current term.

        :raises WriterAway: the lease is lost, and is being acquired again
        :raises Refused: it cannot be acquired; see :attr:`refusal`
        """
        if self._term is None and self.refusal is not None:
            raise type(self.refusal)(**self.refusal.facts)
        if self._term is None:
            raise WriterAway(writer=self.writer)
        return self._term

    async def acquire(self) -> None:
        """Acquire the lease and determine the writer's position.

        :raises WriterTaken: another live process holds the lease
        """
        await self._open(None)

    async def release(self) -> None:
        """Release the writer name, so that another process may take it."""
        self._released = True
        waiting, self._waiting = self._waiting, {}
        for promise, error in chain.from_iterable(waiting.values()):
            promise.errback(error)
        term, self._term = self._term, None
        if term is not None:
            term.is_over = True
            await term.lease.close()

    def failed_over(self, incarnation: int) -> None:
        """Give up a lease that is held on a server which was replaced."""
        term = self._term
        if term is not None and term.incarnation < incarnation:
            self.lost("the database failed over", term)

    def lost(self, reason: str, term: LeaseTerm) -> None:
        """End a term that was not released, and acquire the lease again."""
        if term.is_over:
            return
        term.is_over, self._term = True, None
        self._log.warn(
            "writer {writer} lost its lease ({reason}); acquiring it again",
            writer=self.writer,
            reason=reason,
        )
        self._scheduler.spawn(f"reopen writer {self.writer}", self._reacquire(term))

    async def reacquired(self, term: LeaseTerm, error: CommitUnknown) -> None:
        """Wait until the lease has been acquired again after a lost term.

        :raises CommitUnknown: ``error`` itself, if the lease was released instead
        """
        if term.recovered is not None:
            return
        if self._released:
            raise error
        promise: Promise[None] = self._scheduler.promise()
        self._waiting.setdefault(term, []).append((promise, error))
        await promise

    async def _reacquire(self, lost: LeaseTerm) -> None:
        with suppress(SynreplError):  # the session is lost
            await lost.lease.close()
        retry = Retry(_BACK_OFF, self._scheduler.random)
        before: type[SynreplError] | None = None
        while not self._released:
            try:
                await self._open(lost)
                self.refusal = None
                self._log.info("writer {writer} holds its lease again", writer=self.writer)
                return
            except SynreplError as error:
                # The first refusal may be caused by our own session, whose end the database
                # has not noticed yet.
                again = isinstance(error, Refused) and type(error) is before
                self.refusal = error if isinstance(error, Refused) and again else None
                before = type(error)
                self._log.warn("cannot acquire the lease of the writer again: {error}", error=error)
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
        if self._released:  # while awaiting
            await lease.close()
            return
        self.ledgers = ledgers
        self._incarnations = {name: look.incarnation for name, look in seen.items()}
        newest = max(self._incarnations.values(), default=1)
        term = self._term = LeaseTerm(lease, ledgers, newest)
        for stream in self._streams:
            name = stream.name
            if name in failed_over:
                self._listener.failed_over(stream, self.writer, ledgers[name], seen[name])
                continue
            self._listener.lease_acquired(stream, self.writer, ledgers[name])
            if lost is not None:
                self._listener.recovered(stream, found[name])
        lease.on_lost(
            lambda reason: self.lost(reason, term)
        )  # calls back at once if it is lost by now
        if lost is not None:
            lost.recovered = found
            for promise, _ in self._waiting.pop(lost, ()):
                promise.callback(None)

    async def _recover(
        self, stream: Stream, seen: Observation, failed_over: bool
    ) -> tuple[Ledger, list[Fact]]:
        """The writer's position according to the store, and its facts not announced yet.

        The table is read to its end, since after a failover the sequence may be behind it.
        """
        before = self.ledgers.get(stream.name)
        facts: list[Fact] = []
        if before is not None:
            page = Page((), before.position, is_limited=True)
            while page.is_limited:
                span = Range(page.upto, MAX_TOKEN)
                page = await surviving_page(
                    self._store, stream, span, self.writer, _RECOVERY_PAGE_ROWS
                )
                facts += page.facts
        if before is None or failed_over:
            reached = await self._store.reached(stream, Range(seen.recorded, MAX_TOKEN))
            mine = seen.writers[self.writer].position
            # Nothing of this writer is open, so everything up to the last token is settled.
            # A lower position might be below one already published, for tokens that were
            # rolled back leave no trace in the table.
            position = max(mine, reached.get(self.writer, 0), seen.last)
        else:
            position = facts[-1].token if facts else before.position
        ledger = Ledger(position)
        known = 0 if before is None or failed_over else before.seen
        ledger.saw(max(seen.last, known))
        return ledger, facts
