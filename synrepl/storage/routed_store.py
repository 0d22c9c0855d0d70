"""One store for streams in tables and streams in memory."""

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
    """Routes each stream to the tables or to memory, by ``Stream.in_memory``.

    Recorded positions and leases of followers are always in the tables.
    """

    is_late = False

    def __init__(self, tables: FactStore, memory: FactStore) -> None:
        self._tables = tables
        self._memory = memory

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> RoutedLease:
        """Become ``writer`` in both; first in the tables, which are shared with other processes."""
        durable, volatile = _split(streams)
        tables = await self._tables.open_writer(writer, durable) if durable else None
        try:
            memory = await self._memory.open_writer(writer, volatile) if volatile else None
        except BaseException:
            if tables is not None:
                await tables.close()
            raise
        return RoutedLease(writer, tables, memory)

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Observe streams."""
        durable, volatile = _split(streams)
        seen = dict(await self._tables.observe(durable)) if durable else {}
        if volatile:
            seen.update(await self._memory.observe(volatile))
        return seen

    async def confirm(self, announced: Mapping[str, Mapping[str, Token]]) -> int:
        """Confirm a server that was promoted or restored."""
        return await self._tables.confirm(announced)

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once no transaction of it can still commit."""
        return await self._of(stream).fence(stream, writer)

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that can have been given out."""
        return await self._of(stream).given_out(stream)

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """A page of about ``limit`` rows of the facts in ``span``."""
        return await self._of(stream).page(stream, span, writer, limit)

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""
        return await self._of(stream).reached(stream, span)

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Record positions."""
        await self._of(stream).record_positions(stream, linear, writers)

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's durable positions by (stream, writer)."""
        return await self._tables.follower_positions(follower)

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Record a follower's positions."""
        await self._tables.record_follower(follower, positions)

    async def named_followers(self) -> Sequence[NamedFollower]:
        """All named followers, by name."""
        return await self._tables.named_followers()

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Retain facts that a named follower has not acknowledged."""
        await self._tables.renew_lease(follower, streams, lease_s)

    async def mark(self, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
        """Mark the stream's current position, and return past ones."""
        return await self._of(stream).mark(stream, keep_s, max_s)

    async def trim(self, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
        """Delete the oldest facts that may be trimmed; leases do not retain those in memory."""
        return await self._of(stream).trim(stream, cap, forced, limit)

    def _of(self, stream: Stream) -> FactStore:
        return self._memory if stream.in_memory else self._tables


class RoutedLease:
    """The lease of a writer name in the tables, in memory, or in both."""

    def __init__(self, writer: str, tables: WriterLease | None, memory: WriterLease | None) -> None:
        self.writer = writer
        self._tables = tables
        self._memory = memory

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Call ``call(reason)`` once when the name is lost, which happens only in the tables."""
        if self._tables is not None:
            self._tables.on_lost(call)

    def epoch(self, stream: Stream) -> int:
        """The epoch of the lease."""
        return self._of(stream).epoch(stream)

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[AppendResult]:
        """Reserve tokens for all drafts and write them in one transaction."""
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
        """Reserve tokens until they are released."""
        return await self._of(stream).reserve(stream, count, floor)

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write facts at reserved tokens, in one transaction."""
        await self._of(stream).write(stream, facts)

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Release reserved tokens, written or not."""
        await self._of(stream).release(stream, tokens)

    async def close(self) -> None:
        """Release the writer name; in memory even if the tables cannot be reached."""
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
