"""The lease of a writer name in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

from synrepl.core.tokens import Range, Token
from synrepl.storage import idempotency
from synrepl.storage.database import Transaction
from synrepl.storage.memory.changes import MemoryChanges
from synrepl.storage.memory.stream import MemoryStream
from synrepl.storage.outbox import Outbox
from synrepl.storage.store import (
    AppendResult,
    DatabaseAway,
    Draft,
    KeyReused,
    TransactionResult,
    tokens_of,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

T = TypeVar("T")

Step = Callable[[str], Awaitable[None]]


class MemoryKeys:
    """The last ``max_keys`` idempotency keys, with their answers."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._answers: OrderedDict[tuple[str, str], tuple[bytes, AppendResult]] = OrderedDict()

    def recall(self, stream: str, key: str, digest: bytes) -> AppendResult | None:
        """The recorded answer for a key, if there is one.

        :raises KeyReused: the key was used with other rows
        """
        found = self._answers.get((stream, key))
        if found is None:
            return None
        if found[0] != digest:
            raise KeyReused(key=key)
        return found[1]

    def remember(self, stream: str, key: str, digest: bytes, answer: AppendResult) -> None:
        """Record an answer."""
        self._answers[stream, key] = digest, replace(answer, replayed=True)
        if len(self._answers) > self._max_keys:
            self._answers.popitem(last=False)

    def keep(self, tokens: Mapping[str, Collection[Token]]) -> None:
        """Forget the answers whose facts are lost; ``tokens`` are the remaining ones by stream."""
        for (stream, key), (_, written) in list(self._answers.items()):
            if not set(written.tokens) <= set(tokens.get(stream, ())):
                del self._answers[stream, key]


class MemoryLease:
    """The lease of one writer's name on some streams; see :class:`~.store.WriterLease`.

    The session with the "database" can be lost, by :meth:`crash` and :meth:`kill`.

    :param streams: by name, with the epoch of the lease
    :param step: awaited wherever a real database could be slow or fail
    :param begin_changes: makes the transaction for the caller's work
    """

    def __init__(
        self,
        writer: str,
        streams: Mapping[str, tuple[MemoryStream, int]],
        keys: MemoryKeys,
        step: Step,
        begin_changes: Callable[[], MemoryChanges] = MemoryChanges,
    ) -> None:
        self.writer = writer
        self._streams = streams
        self._keys = keys
        self._step = step
        self._begin_changes = begin_changes
        self._codecs: dict[str, RowCodec] = {}
        self._lost: str | None = None
        self._on_lost: list[Callable[[str], object]] = []
        self._killed = False
        self._open: dict[_MemoryTransaction, None] = {}
        self._holder_of: dict[tuple[str, Token], int] = {}
        self._tokens_under: dict[tuple[str, int], int] = {}

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Call ``call(reason)`` once when the session, and with it the name, is lost."""
        if self._lost is None:
            self._on_lost.append(call)
        else:
            call(self._lost)

    def epoch(self, stream: Stream) -> int:
        """The epoch of the lease."""
        return self._streams[stream.name][1]

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[AppendResult]:
        """Reserve tokens for all drafts and write them in one transaction."""
        memory, _ = self._streams[stream.name]
        for draft in drafts:
            for rows in draft.facts:
                memory.check(rows)
        await self._step("append")
        answers = None
        while answers is None:  # a key was used meanwhile, and now has an answer
            answers = await self._try_append(memory, drafts, floor)
        await self._step("append committed")
        return answers

    async def _try_append(
        self, memory: MemoryStream, drafts: Sequence[Draft], floor: Token
    ) -> list[AppendResult] | None:
        name = memory.stream.name
        digests = [idempotency.digest(d.facts) if d.key is not None else b"" for d in drafts]
        with self._transaction(memory, f"append of {len(drafts)} drafts") as transaction:
            answers: list[AppendResult] = []
            facts: list[Fact] = []
            for draft, digest in zip(drafts, digests, strict=True):
                if draft.key is not None:
                    before = self._keys.recall(name, draft.key, digest)
                    if before is not None:
                        answers.append(before)
                        continue
                tokens: Sequence[Token] = memory.take(len(draft.facts), floor)
                answers.append(AppendResult(tokens, self.writer))
                facts += (
                    Fact(token, self.writer, tuple(rows))
                    for token, rows in zip(tokens, draft.facts, strict=True)
                )
            await self._step("append reserved")
            transaction.check()
            fresh = [
                (draft.key, digest, written)
                for draft, digest, written in zip(drafts, digests, answers, strict=True)
                if draft.key is not None and not written.replayed
            ]
            if any(self._keys.recall(name, key, digest) is not None for key, digest, _ in fresh):
                return None
            memory.commit(facts)
            for key, digest, answer in fresh:
                self._keys.remember(name, key, digest, answer)
            return answers

    async def transact(
        self,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
        begin: Callable[[], Mapping[str, Token]],
    ) -> TransactionResult[T]:
        """Run the caller's work and append what it puts into its outbox, in one transaction."""
        for stream in streams:
            if stream.name not in self._codecs:  # codecs are expensive to make
                self._codecs[stream.name] = RowCodec(stream)
        codecs = {stream.name: self._codecs[stream.name] for stream in streams}
        await self._step("transact")
        done = None
        while done is None:  # the sequence was set back, and its tokens were used meanwhile
            done = await self._try_transact(name, codecs, work, begin)
        await self._step("transact committed")
        return done

    async def _try_transact(
        self,
        name: str,
        codecs: Mapping[str, RowCodec],
        work: Callable[[Transaction, Outbox], T],
        begin: Callable[[], Mapping[str, Token]],
    ) -> TransactionResult[T] | None:
        outbox, changes = Outbox(codecs), self._begin_changes()
        try:
            result = work(changes, outbox)
            outbox.close()
            floors = begin()
            with ExitStack() as entered:
                memories = [self._streams[stream][0] for stream in codecs]
                what = f"transaction {name!r}"
                transactions = [entered.enter_context(self._transaction(m, what)) for m in memories]
                posted = {
                    stream: self._numbered(stream, facts, floors[stream])
                    for stream, facts in outbox.facts.items()
                }
                await self._step("transact reserved")
                for transaction in transactions:
                    transaction.check()
                if any(self._in_use(stream, facts) for stream, facts in posted.items()):
                    changes.roll_back()
                    return None
                outbox.reserved(changes, tokens_of(posted))
                changes.commit()
                for stream, facts in posted.items():
                    self._streams[stream][0].commit(facts)
        except BaseException:
            changes.roll_back()
            raise
        return TransactionResult(result, posted)

    def _numbered(
        self, stream: str, facts: Sequence[tuple[Row, ...]], floor: Token
    ) -> Sequence[Fact]:
        tokens = self._streams[stream][0].take(len(facts), floor)
        return [Fact(token, self.writer, rows) for token, rows in zip(tokens, facts, strict=True)]

    def _in_use(self, stream: str, facts: Sequence[Fact]) -> bool:
        """Whether there are facts at the tokens of these."""
        span = Range(facts[0].token - 1, facts[-1].token)
        return bool(self._streams[stream][0].reached(span))

    async def reserve(self, stream: Stream, count: int, floor: Token) -> Sequence[Token]:
        """Reserve tokens until they are released."""
        if count < 1:
            return []
        memory, epoch = self._streams[stream.name]
        await self._step("reserve")
        self._require_session()
        memory.enter(self.writer, epoch)
        memory.leave(self.writer)
        number = memory.hold(self.writer, f"reservation of {count} tokens")
        tokens = memory.take(count, floor)
        self._tokens_under[stream.name, number] = len(tokens)
        self._holder_of.update({(stream.name, token): number for token in tokens})
        try:
            await self._step("reserved")
            self._require_session()
        except BaseException:
            self._release_tokens(memory, tokens)
            raise
        return tokens

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write facts at reserved tokens, in one transaction."""
        memory, _ = self._streams[stream.name]
        for fact in facts:
            memory.check(fact.rows)
        await self._step("write")
        with self._transaction(memory, f"write of {len(facts)} facts") as transaction:
            await self._step("write entered")
            transaction.check()
            memory.commit(facts)
        await self._step("write committed")

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Release reserved tokens, written or not."""
        memory, _ = self._streams[stream.name]
        await self._step("release")
        self._require_session()
        self._release_tokens(memory, tokens)

    async def close(self) -> None:
        """Release the writer name."""
        try:
            await self._step("close")
        except BaseException:  # the connection, and with it the session, is closed all the same
            if self._lost is None:
                self._end_session("closed")
            self._on_lost.clear()
            raise
        self._require_session()
        for memory, _ in self._streams.values():
            writer = memory.writer(self.writer)
            if not writer.transactions:  # otherwise it will be fenced
                writer.epoch += 1
                writer.held = False
        self._end_session("closed")
        self._on_lost.clear()

    def crash(self, reason: str = "the connection was cut") -> None:
        """Lose the session, as when its connection breaks while the process lives on.

        The session locks and explicit reservations are lost at once. Until the writer
        is fenced, this lease can still write. The callbacks of :meth:`on_lost` are called.
        """
        if self._lost is None:
            self._end_session(reason)
            calls, self._on_lost = self._on_lost, []
            for call in calls:
                call(reason)

    def kill(self) -> None:
        """Lose everything, as when the process dies: open transactions roll back, too."""
        self._killed = True
        for transaction in list(self._open):
            transaction.end()
        if self._lost is None:
            self._end_session("killed")

    def _end_session(self, reason: str) -> None:
        self._lost = reason
        for memory, _ in self._streams.values():
            memory.writer(self.writer).session = None
        for stream, number in self._tokens_under:
            self._streams[stream][0].release(self.writer, [number])
        self._tokens_under.clear()
        self._holder_of.clear()

    def _release_tokens(self, memory: MemoryStream, tokens: Sequence[Token]) -> None:
        name = memory.stream.name
        for token in tokens:
            number = self._holder_of.pop((name, token), None)
            if number is None:
                continue
            self._tokens_under[name, number] -= 1
            if not self._tokens_under[name, number]:
                del self._tokens_under[name, number]
                memory.release(self.writer, [number])

    def _require_session(self) -> None:
        if self._lost is not None:
            raise DatabaseAway(where="memory", reason=self._lost)

    @contextmanager
    def _transaction(self, memory: MemoryStream, what: str) -> Iterator[_MemoryTransaction]:
        if self._killed:
            raise DatabaseAway(where="memory", reason="killed")
        transaction = _MemoryTransaction(
            memory, self.writer, self._streams[memory.stream.name][1], what
        )
        self._open[transaction] = None
        try:
            yield transaction
        finally:
            transaction.end()
            del self._open[transaction]


class _MemoryTransaction:
    """An open transaction, from entering to commit or rollback; it holds a reservation.

    :raises Fenced: the epoch was raised
    """

    def __init__(self, memory: MemoryStream, writer: str, epoch: int, what: str) -> None:
        memory.enter(writer, epoch)
        self._memory = memory
        self._writer = writer
        self._holder = memory.hold(writer, what)
        self._ended = False

    def check(self) -> None:
        """Check that it was not rolled back meanwhile.

        :raises DatabaseAway: it was
        """
        if self._ended:
            raise DatabaseAway(where="memory", reason="killed")

    def end(self) -> None:
        """Release its reservation, once."""
        if not self._ended:
            self._ended = True
            self._memory.leave(self._writer)
            self._memory.release(self._writer, [self._holder])
