"""Streams in tables and streams in memory, as one store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import KeptInMemory, Outbox
from synrepl.storage.store import (
    AgedPositions,
    AppendResult,
    Draft,
    FactStore,
    NamedFollower,
    Observation,
    Page,
    TransactionResult,
    TrimResult,
    WriterLease,
)
from synrepl.streams.definition import Fact, Stream

T = TypeVar("T")


class RoutedStore:
    """Sends each stream where ``Stream.in_memory`` says it is kept.

    What followers have on record, and their leases, are in the tables.
    """

    is_late = False

    def __init__(self, tables: FactStore, memory: FactStore) -> None:
        self._tables = tables
        self._memory = memory

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> RoutedLease:
        """Become ``writer`` in both; of the tables first, for they know other processes."""
        durable, fleeting = _split(streams)
        tables = await self._tables.open_writer(writer, durable) if durable else None
        try:
            memory = await self._memory.open_writer(writer, fleeting) if fleeting else None
        except BaseException:
            if tables is not None:
                await tables.close()
            raise
        return RoutedLease(writer, tables, memory)

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Look at streams from outside."""
        durable, fleeting = _split(streams)
        seen = dict(await self._tables.observe(durable)) if durable else {}
        if fleeting:
            seen.update(await self._memory.observe(fleeting))
        return seen

    async def confirm(self, announced: Mapping[str, Mapping[str, Token]]) -> int:
        """Confirm a server that was promoted or restored."""
        return await self._tables.confirm(announced)

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once nothing of it can still commit."""
        return await self._of(stream).fence(stream, writer)

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that can have been given out."""
        return await self._of(stream).given_out(stream)

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Facts in ``span``, about ``limit`` rows at a time."""
        return await self._of(stream).page(stream, span, writer, limit)

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""
        return await self._of(stream).reached(stream, span)

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Put positions on record."""
        await self._of(stream).record_positions(stream, linear, writers)

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's durable positions by (stream, writer)."""
        return await self._tables.follower_positions(follower)

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Make a follower's positions durable."""
        await self._tables.record_follower(follower, positions)

    async def named_followers(self) -> Sequence[NamedFollower]:
        """All named followers, by name."""
        return await self._tables.named_followers()

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Keep for a named follower what it has not acknowledged."""
        await self._tables.renew_lease(follower, streams, lease_s)

    async def mark(self, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
        """Note where a stream is on record now, and tell where it was."""
        return await self._of(stream).mark(stream, keep_s, max_s)

    async def trim(self, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
        """Delete the oldest facts that may go; in memory nobody's lease holds them."""
        return await self._of(stream).trim(stream, cap, forced, limit)

    def _of(self, stream: Stream) -> FactStore:
        return self._memory if stream.in_memory else self._tables


class RoutedLease:
    """A writer's name in the tables, in memory, or in both."""

    def __init__(self, writer: str, tables: WriterLease | None, memory: WriterLease | None) -> None:
        self.writer = writer
        self._tables = tables
        self._memory = memory

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Have ``call(reason)`` called once when the name is lost, which only the tables' can be."""
        if self._tables is not None:
            self._tables.on_lost(call)

    def epoch(self, stream: Stream) -> int:
        """The epoch it writes under."""
        return self._of(stream).epoch(stream)

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[AppendResult]:
        """Reserve and write all drafts in one transaction."""
        return await self._of(stream).append(stream, drafts, floor)

    async def transact(
        self,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
        begin: Callable[[], Mapping[str, Token]],
    ) -> TransactionResult[T]:
        """Run the caller's work and append its outbox, in one transaction of the database.

        :raises KeptInMemory: one of the streams is not in the tables
        """
        for stream in streams:
            if stream.in_memory:
                raise KeptInMemory(stream=stream.name)
        assert self._tables is not None, "no stream in tables was asked for"
        return await self._tables.transact(name, streams, work, begin)

    async def reserve(self, stream: Stream, count: int, floor: Token) -> Sequence[Token]:
        """Take tokens that stay reserved until they are written or released."""
        return await self._of(stream).reserve(stream, count, floor)

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write facts at reserved tokens, in one transaction."""
        await self._of(stream).write(stream, facts)

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Give reserved tokens back, written or not."""
        await self._of(stream).release(stream, tokens)

    async def close(self) -> None:
        """Give the writer's name free, in memory also when the tables cannot be reached."""
        try:
            if self._tables is not None:
                await self._tables.close()
        finally:
            if self._memory is not None:
                await self._memory.close()

    def _of(self, stream: Stream) -> WriterLease:
        found = self._memory if stream.in_memory else self._tables
        assert found is not None, f"{stream.name} was not asked for when the writer was opened"
        return found


def _split(streams: Sequence[Stream]) -> tuple[list[Stream], list[Stream]]:
    durable = [stream for stream in streams if not stream.in_memory]
    return durable, [stream for stream in streams if stream.in_memory]
