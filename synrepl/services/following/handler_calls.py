"""Calls handlers: retries with back-off, and dead letters after the last attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Range, Token
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.consumer import Consumer, PositionTracker
from synrepl.services.following.failures import HandlerFailures, reason_of
from synrepl.services.following.position_record import PositionRecord
from synrepl.services.handlers import Batch, as_transactional
from synrepl.storage.database import CommitUnknown, SerializationFailure, Transaction
from synrepl.storage.followers.dead_letters import DeadLetter, FactsOfDeadLettersLost, FailedFact
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Generation, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

#: Delay between attempts of a handler, and between attempts to record positions.
BACK_OFF = BackOff(0.5, 15.0)

#: Errors that are not caused by the facts in the batch.
_NOT_CAUSED_BY_FACTS = (Unavailable, CommitUnknown, SerializationFailure)


class HandlerCalls:
    """Calls handlers with batches.

    :param catalogue: the streams whose facts may become dead letters
    :param coherence: gets the rows whose effects a transactional handler has committed, as
        caches may hold older data
    """

    def __init__(
        self,
        scheduler: Scheduler,
        record: PositionRecord,
        failures: HandlerFailures,
        log: Logger,
        catalogue: Catalogue,
        coherence: Coherence | None,
    ) -> None:
        self._scheduler = scheduler
        self._record = record
        self._failures = failures
        self._log = log
        self._coherence = coherence
        self._catalogue = catalogue
        self._row_codecs: dict[str, _RowTextCodec] = {}

    def retry(self) -> Retry:
        """A retry counter for one call."""
        return Retry(BACK_OFF, self._scheduler.random)

    async def call_until_done(
        self,
        consumer: Consumer,
        tracker: PositionTracker,
        batch: Batch,
        retry: Retry | None = None,
        failed: Callable[[], object] = lambda: None,
        rewinds: int | None = None,
    ) -> None:
        """Call a handler until it has processed a batch, or a failover has moved it back.

        :param retry: the attempts already made; None for none
        :param failed: called after each failed attempt
        :param rewinds: ``tracker.rewinds`` when the batch was read; None for its current value
        """
        rewinds = tracker.rewinds if rewinds is None else rewinds
        retry = self.retry() if retry is None else retry
        while tracker.rewinds == rewinds:
            if retry.failures:
                await self._scheduler.sleep(retry.delay_s)
            if await self.attempt(consumer, tracker, batch, retry, rewinds):
                return
            failed()

    async def attempt(
        self,
        consumer: Consumer,
        tracker: PositionTracker,
        batch: Batch,
        retry: Retry,
        rewinds: int | None = None,
    ) -> bool:
        """Call a handler with a batch once; False when it failed.

        :param retry: the attempts before this one; in the last one that the handler's policy
            allows, facts that it cannot process become dead letters
        :param rewinds: as in :meth:`call_until_done`
        """
        attempts = retry.failures + 1
        last = consumer.attempts is not None and attempts >= consumer.attempts
        rewinds = tracker.rewinds if rewinds is None else rewinds
        try:
            async with consumer.lock((batch.stream, batch.writer)):
                if tracker.rewinds != rewinds:
                    pass  # the facts of the batch may be lost
                elif consumer.is_transactional:
                    await self._apply(consumer, tracker, batch, attempts if last else 0)
                elif last:
                    await self._last_attempt(consumer, tracker, batch, attempts)
                else:
                    await consumer.handler.on_rows(batch)
                # Callers that wait for the lock go by the position.
                if batch.ordered and tracker.rewinds == rewinds:
                    tracker.reach(batch.upto)
        except Exception as error:  # a user's handler may raise anything
            self._failures.failed(consumer.name, batch, error, attempts, retry.failed())
            return False
        self._failures.succeeded(consumer.name, batch.stream, batch.writer)
        return True

    async def reset(
        self,
        consumer: Consumer,
        stream: str,
        writer: str,
        position: Token,
        lost: Range | None = None,
    ) -> None:
        """Tell a handler of a reset, until it succeeds; see :meth:`.Handler.on_reset`."""
        batch, retry = Batch(stream, writer, 0, position, ()), self.retry()
        while True:
            try:
                async with consumer.lock((stream, writer)):
                    handler = consumer.handler
                    if lost is not None and consumer.accepts_lost_range:
                        await handler.on_reset(stream, writer, position, lost)
                    else:
                        await handler.on_reset(stream, writer, position)
            except Exception as error:  # a user's handler may raise anything
                pause = retry.failed()
                self._failures.failed(consumer.name, batch, error, retry.failures, pause, "reset")
                await self._scheduler.sleep(pause)
            else:
                self._failures.succeeded(consumer.name, stream, writer)
                return

    async def replay(self, consumer: Consumer, letter: DeadLetter) -> bool:
        """Call a handler with a dead letter again; False when it failed.

        :raises SynreplError: the record cannot be written
        """
        fact = letter.fact
        try:
            if letter.is_lost:  # since the replay was requested
                raise FactsOfDeadLettersLost(tokens=f"{fact.token} of {fact.stream}", more="")
            rows = self._row_codec(fact.stream).read(fact.rows)
            facts = [Fact(fact.token, fact.fact_writer, rows)]
            batch = Batch(
                fact.stream, fact.writer, fact.token - 1, fact.token, facts, replayed=True
            )
            async with consumer.lock((fact.stream, fact.writer)):
                handler = consumer.handler
                transactional = as_transactional(handler)
                if transactional is not None:
                    apply = transactional.apply
                    await self._record.replay(letter, lambda txn: apply(txn, batch))
                    self._suspect_caches(batch)
                else:
                    await handler.on_rows(batch)
                    await self._record.replay(letter)
        except _NOT_CAUSED_BY_FACTS:
            raise
        except Exception as error:  # a user's handler may raise anything
            where = f"{fact.stream} {fact.token} of {fact.writer or 'all writers'}"
            sentence = f"handler {consumer.name} cannot process dead letter {where}: {error!r}"
            self._failures.log(consumer.name, sentence, error)
            await self._record.keep_letter(letter, reason_of(error))
            return False
        return True

    # -- inside -----------------------------------------------------------------------

    async def _apply(
        self, consumer: Consumer, tracker: PositionTracker, batch: Batch, attempts: int
    ) -> None:
        """Call a transactional handler, in one transaction.

        :param attempts: number of attempts if this is the last one, in which facts that cannot be
            applied become dead letters; otherwise 0
        """
        handler = as_transactional(consumer.handler)
        assert handler is not None
        failed: list[FailedFact] = []

        def whole(txn: Transaction, todo: Batch) -> Sequence[FailedFact]:
            handler.apply(txn, todo)
            return ()

        def in_parts(txn: Transaction, todo: Batch) -> Sequence[FailedFact]:
            failed.clear()  # it may run more than once
            for part in _Parts(todo):
                try:
                    with _savepoint(txn):
                        handler.apply(txn, part.batch)
                except _NOT_CAUSED_BY_FACTS:
                    raise
                except Exception as error:  # a user's handler may raise anything
                    if not part.split():
                        failed.append(self._failed(consumer, part.batch, error, attempts))
            return failed

        await self._record.apply(consumer, tracker, batch, in_parts if attempts else whole)
        self._suspect_caches(batch)
        self._log_dead_letters(consumer, failed)

    async def _last_attempt(
        self, consumer: Consumer, tracker: PositionTracker, batch: Batch, attempts: int
    ) -> None:
        """Make the last attempt of a plain handler, which may have handled part of the batch before."""
        is_first = attempts == 1  # most batches succeed as a whole
        if not (is_first and await self._succeeds(consumer, batch)):
            await self._call_per_fact(consumer, tracker, batch, attempts)

    async def _succeeds(self, consumer: Consumer, batch: Batch) -> bool:
        """Whether a plain handler processes a batch; errors are recorded later, per fact."""
        try:
            await consumer.handler.on_rows(batch)
        except _NOT_CAUSED_BY_FACTS:
            raise
        except Exception:  # a user's handler may raise anything
            return False
        return True

    async def _call_per_fact(
        self, consumer: Consumer, tracker: PositionTracker, batch: Batch, attempts: int
    ) -> None:
        """Call a handler fact by fact; those that fail become dead letters."""
        failed: list[FailedFact] = []
        after = batch.after
        for fact in batch.facts:
            alone = replace(batch, after=after, upto=fact.token, facts=[fact])
            after = fact.token
            try:
                await consumer.handler.on_rows(alone)
            except _NOT_CAUSED_BY_FACTS:
                raise
            except Exception as error:  # a user's handler may raise anything
                failed.append(self._failed(consumer, alone, error, attempts))
        if failed:
            await self._record.add_dead_letters(consumer, tracker, batch, failed)
            self._log_dead_letters(consumer, failed)

    def _failed(
        self, consumer: Consumer, batch: Batch, error: Exception, attempts: int
    ) -> FailedFact:
        (fact,) = batch.facts
        return FailedFact(
            consumer.name,
            batch.stream,
            batch.writer,
            fact.token,
            fact.writer,
            self._row_codec(batch.stream).write(fact.rows),
            reason_of(error),
            attempts,
        )

    def _row_codec(self, stream: str) -> _RowTextCodec:
        found = self._row_codecs.get(stream)
        if found is None:
            found = self._row_codecs[stream] = _RowTextCodec(self._catalogue[stream])
        return found

    def _log_dead_letters(self, consumer: Consumer, facts: Sequence[FailedFact]) -> None:
        for fact in facts:
            self._log.warn(
                "handler {handler} cannot process {stream} {token} of {writer}: it is stored as a"
                " dead letter after {attempts} attempts ({error}: {message})",
                handler=consumer.name,
                stream=fact.stream,
                token=fact.token,
                writer=fact.writer or "all writers",
                attempts=fact.attempts,
                error=fact.reason.error,
                message=fact.reason.message,
            )

    def _suspect_caches(self, batch: Batch) -> None:
        """Invalidate entries loaded while the transaction ran, which may be older than its effects."""
        if self._coherence is not None:
            rows = [row for fact in batch.facts for row in fact.rows]
            self._coherence.suspect(batch.stream, rows)


class _Parts:
    """Iterates over a batch in order; a part that is split is followed by its halves."""

    def __init__(self, batch: Batch) -> None:
        self._left = [batch]

    def __iter__(self) -> Iterator[_Part]:
        while self._left:
            yield _Part(self._left.pop(), self._left)


class _Part:
    """Part of a batch.

    :ivar batch: its facts
    """

    def __init__(self, batch: Batch, left: list[Batch]) -> None:
        self.batch = batch
        self._left = left

    def split(self) -> bool:
        """Continue with both halves; False for a single fact."""
        batch, facts = self.batch, self.batch.facts
        if len(facts) == 1:
            return False
        half = len(facts) // 2
        between = facts[half - 1].token
        self._left.append(replace(batch, after=between, facts=facts[half:]))
        self._left.append(replace(batch, upto=between, facts=facts[:half]))
        return True


class _RowTextCodec:
    """The rows of a fact as JSON text, and back."""

    def __init__(self, stream: Stream) -> None:
        codec = RowCodec(stream)
        self._encode = codec.encoder(Generation.CURRENT)
        self._decode = codec.decode
        self._split = msgspec.json.Decoder(list[msgspec.Raw]).decode

    def write(self, rows: Sequence[Row]) -> str:
        return f"[{','.join(self._encode(row).decode() for row in rows)}]"

    def read(self, text: str) -> tuple[Row, ...]:
        """Decode the rows.

        :raises BadRow: the declaration of the stream has changed since
        """
        return tuple(self._decode(bytes(raw)) for raw in self._split(text))


@contextmanager
def _savepoint(txn: Transaction) -> Iterator[None]:
    """Roll back the statements inside, and only those, when they fail.

    Deferred constraints are checked at its end.
    """
    txn.execute("SAVEPOINT synrepl_part")
    try:
        yield
        txn.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except _NOT_CAUSED_BY_FACTS:
        raise
    except Exception:
        txn.execute("ROLLBACK TO SAVEPOINT synrepl_part; RELEASE SAVEPOINT synrepl_part")
        raise
    txn.execute("SET CONSTRAINTS ALL DEFERRED")
    txn.execute("RELEASE SAVEPOINT synrepl_part")
