"""The lease of a writer name in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from synrepl.core.errors import StorageError, Unavailable
from synrepl.core.tokens import Token
from synrepl.storage import idempotency, writers
from synrepl.storage.database import (
    Database,
    DatabaseSession,
    RaisedByDatabase,
    Record,
    Statements,
    Transaction,
    UniqueViolation,
)
from synrepl.storage.outbox import EarlyTokens, Outbox
from synrepl.storage.postgres.facts import FactTable
from synrepl.storage.short_work import ShortResult, ShortTransactions, ShortWork
from synrepl.storage.store import (
    AppendResult,
    Draft,
    Drained,
    Fenced,
    TransactionResult,
    tokens_of,
)
from synrepl.storage.writers import FIRST_RESERVATION, Claim, lock_class
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec

T = TypeVar("T")

FENCED = "SY001"
DRAINED = "SY006"

#: An append that violates the primary key of the table or of idempotency keys is retried
#: with checks: it then finds the sequence behind, or the first answer.
_ATTEMPTS = 3

#: Lock numbers have 31 bits; they wrap around long after the oldest are released.
LAST_RESERVATION = 2**31 - 1


class _RetryChecked(Exception):
    """The table has a fact at a token that was just given out, or no token could be had early: retry with checks."""


class PostgresLease:
    """The lease of one writer's name on some streams; see :class:`~.store.WriterLease`."""

    def __init__(
        self,
        database: Database,
        session: DatabaseSession,
        writer: str,
        claims: Mapping[str, Claim],
        tables: Mapping[str, FactTable],
        statements: Statements | None = None,
        short: ShortTransactions | None = None,
    ) -> None:
        self.writer = writer
        self._short = short
        self._statements = statements
        self._database = database
        self._session = session
        self._claims = claims
        self._tables = tables
        self._codecs: dict[str, RowCodec] = {}
        self._next_lock = FIRST_RESERVATION
        self._lock_of: dict[tuple[str, Token], int] = {}
        self._tokens_under: dict[int, int] = {}

    @property
    def backend_pid(self) -> int:
        """The PID of the Postgres backend that holds the name; 0 once the session is over."""
        return self._session.backend_pid

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Call ``call(reason)`` once when the session, and with it the name, is lost."""
        self._session.on_lost(call)

    def epoch(self, stream: Stream) -> int:
        """The epoch of the lease."""
        return self._claims[stream.name].epoch

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[AppendResult]:
        """Reserve tokens for all drafts and write them in one transaction."""
        table, claim = self._tables[stream.name], self._claims[stream.name]
        digests = [idempotency.digest(d.facts) if d.key is not None else b"" for d in drafts]

        def work(txn: Transaction, checked: bool) -> list[AppendResult]:
            answers: dict[int, AppendResult] = {}
            for n, draft in enumerate(drafts):
                if draft.key is not None:
                    before = idempotency.recall(
                        txn, stream.name, draft.key, digests[n], self.writer
                    )
                    if before is not None:
                        answers[n] = before
            fresh = [n for n in range(len(drafts)) if n not in answers]
            facts = [rows for n in fresh for rows in drafts[n].facts]
            append = table.append if checked else table.append_in_one_statement
            tokens = iter(append(txn, claim, self.writer, facts, floor) if facts else ())
            for n in fresh:
                answers[n] = AppendResult([next(tokens) for _ in drafts[n].facts], self.writer)
                key = drafts[n].key
                if key is not None:
                    idempotency.remember(txn, stream.name, key, digests[n], answers[n])
            return [answers[n] for n in range(len(drafts))]

        if self._statements is not None and _is_one_row(drafts):
            params = table.single_params(claim, self.writer, drafts[0].facts[0][0], floor)
            # A duplicate key, or no connection: the general path handles both.
            with self._fencing_named(stream), suppress(UniqueViolation, Unavailable):
                rows = await self._statements.run(table.single, params)
                return [AppendResult([abs(int(rows[0][0]))], self.writer)]
        with self._fencing_named(stream):
            for attempt in range(1, _ATTEMPTS):
                with suppress(UniqueViolation):
                    return await self._database.run("append", partial(work, checked=attempt > 1))
            return await self._database.run("append", partial(work, checked=True))

    async def transact(
        self,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
        begin: Callable[[], Mapping[str, Token]],
    ) -> TransactionResult[T]:
        """Run the caller's work and append the facts in its outbox, in one transaction.

        The writer is entered after the work, unless that reserves tokens early. Until then the transaction holds
        no lock that a successor or an observer of the stream would wait for.
        """
        for stream in streams:
            if stream.name not in self._codecs:  # codecs are expensive to make
                self._codecs[stream.name] = RowCodec(stream)
        codecs = {stream.name: self._codecs[stream.name] for stream in streams}

        def reserve() -> EarlyTokens:
            return self._early_tokens(sorted(codecs), begin())

        def attempt(txn: Transaction, checked: bool) -> TransactionResult[T]:
            outbox = Outbox(codecs) if checked else Outbox(codecs, reserve)
            with _retrying_early(outbox):
                result = work(txn, outbox)
            outbox.close()
            try:
                posted = self._post(txn, codecs, outbox, begin(), checked)
            except UniqueViolation as error:
                if checked:
                    raise
                raise _RetryChecked from error
            # Any other unique violation in here is the caller's own.
            outbox.reserved(txn, tokens_of(posted))
            return TransactionResult(result, posted)

        try:
            if isinstance(work, ShortWork) and self._short is not None and self._short.is_idle:
                done = await self._transact_shortly(
                    self._short, name, work, Outbox(codecs, reserve), begin
                )
                if done is not None:
                    return done.result
            return await self._database.run(name, partial(attempt, checked=False))
        except _RetryChecked:
            pass
        except UniqueViolation as error:  # facts at early tokens may be sent with COMMIT
            if error.constraint not in {self._tables[each].primary_key for each in codecs}:
                raise
        return await self._database.run(name, partial(attempt, checked=True))

    async def _transact_shortly(
        self,
        short: ShortTransactions,
        name: str,
        work: ShortWork[T],
        outbox: Outbox,
        begin: Callable[[], Mapping[str, Token]],
    ) -> ShortResult[TransactionResult[T]] | None:
        """Run work in two round trips, if it is short; None if it was not run.

        :raises _RetryChecked: no token could be reserved early
        """
        opening = work.opening(outbox)
        if opening is None:
            return None

        def finish(txn: Transaction, row: Record | None) -> TransactionResult[T]:
            result = work.finish(txn, outbox, row)
            outbox.close()
            posted = self._post(txn, outbox.streams, outbox, begin(), checked=False)
            outbox.reserved(txn, tokens_of(posted))
            return TransactionResult(result, posted)

        with _retrying_early(outbox):
            return await short.run(name, opening, finish)

    def _early_tokens(self, streams: Sequence[str], floors: Mapping[str, Token]) -> EarlyTokens:
        """One token for each stream, in the order of their names."""
        columns = [
            self._tables[each].early_column(self._claims[each], floors[each]) for each in streams
        ]
        text = f"ARRAY[{', '.join(column for column, _ in columns)}]"
        return EarlyTokens(streams, text, [each for _, params in columns for each in params])

    def _post(
        self,
        txn: Transaction,
        streams: Iterable[str],
        outbox: Outbox,
        floors: Mapping[str, Token],
        checked: bool,
    ) -> dict[str, list[Fact]]:
        """Append the facts of an outbox, and enter as the writer of the other streams, too.

        Streams are processed in the order of their names, so that transactions cannot deadlock.
        """
        posted: dict[str, list[Fact]] = {}
        early = {} if outbox.early is None else outbox.early.of_stream
        for stream in sorted(streams):
            table, claim = self._tables[stream], self._claims[stream]
            facts = outbox.facts.get(stream)
            if stream in early and (not facts or len(facts) == 1):
                if facts:
                    fact = Fact(early[stream], self.writer, facts[0])
                    table.write_deferred(txn, fact)
                    posted[stream] = [fact]
                continue
            with self._fencing_named(table.stream):
                if not facts:
                    writers.enter(txn, claim._replace(notify=False))
                    continue
                append = table.append if checked else table.append_in_one_statement
                tokens = append(txn, claim, self.writer, facts, floors[stream])
            posted[stream] = [
                Fact(token, self.writer, rows) for token, rows in zip(tokens, facts, strict=True)
            ]
        return posted

    async def reserve(self, stream: Stream, count: int, floor: Token) -> Sequence[Token]:
        """Reserve tokens until they are released."""
        table, claim = self._tables[stream.name], self._claims[stream.name]
        if count < 1:
            return []
        lock = self._next_lock
        self._next_lock = lock + 1 if lock < LAST_RESERVATION else FIRST_RESERVATION

        def work(txn: Transaction) -> list[Token]:
            txn.execute("SELECT pg_advisory_lock_shared(%s, %s)", (lock_class(claim.number), lock))
            return table.reserve(txn, claim, count, floor)

        with self._fencing_named(stream):
            try:
                tokens = await self._session.run(work)
            except StorageError:  # the lock outlives the transaction
                await self._unlock(stream, [lock])
                raise
        self._tokens_under[lock] = len(tokens)
        self._lock_of.update({(stream.name, token): lock for token in tokens})
        return tokens

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write facts at reserved tokens, in one transaction."""
        table, claim = self._tables[stream.name], self._claims[stream.name]

        def work(txn: Transaction) -> None:
            writers.enter(txn, claim)
            table.write(txn, self.writer, facts)

        with self._fencing_named(stream):
            await self._database.run("write", work)

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Release reserved tokens, written or not."""
        done: list[int] = []
        for token in tokens:
            lock = self._lock_of.pop((stream.name, token))
            self._tokens_under[lock] -= 1
            if not self._tokens_under[lock]:
                del self._tokens_under[lock]
                done.append(lock)
        if done:
            await self._unlock(stream, done)

    async def close(self) -> None:
        """Release the writer name."""
        numbers = [claim.number for claim in self._claims.values()]
        await self._session.close(lambda txn: writers.release_session_locks(txn, numbers))

    async def _unlock(self, stream: Stream, locks: Sequence[int]) -> None:
        number = self._claims[stream.name].number
        await self._session.run(lambda txn: writers.release_reservations(txn, number, locks))

    @contextmanager
    def _fencing_named(self, stream: Stream) -> Iterator[None]:
        try:
            yield
        except RaisedByDatabase as error:
            if error.code == DRAINED:
                raise Drained(writer=self.writer, stream=stream.name) from error
            if error.code != FENCED:
                raise
            epoch = self._claims[stream.name].epoch
            raise Fenced(
                writer=self.writer, stream=stream.name, current=error.detail, epoch=epoch
            ) from error


@contextmanager
def _retrying_early(outbox: Outbox) -> Iterator[None]:
    """Have work run again where a token could not be reserved early, which finds out of which stream.

    :raises _RetryChecked:
    """
    try:
        yield
    except RaisedByDatabase as error:
        if outbox.early is None or error.code not in (FENCED, DRAINED):
            raise
        raise _RetryChecked from error


def _is_one_row(drafts: Sequence[Draft]) -> bool:
    """Whether it is one draft without a key, of one fact with one row."""
    if len(drafts) != 1 or drafts[0].key is not None:
        return False
    facts = drafts[0].facts
    return len(facts) == 1 and len(facts[0]) == 1
