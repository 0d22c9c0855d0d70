"""The database of a simulation as one of its processes sees it: far away, and full of delays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from synrepl.core.tokens import Range, Token
from synrepl.storage.store import (
    Draft,
    FactStore,
    Observation,
    Page,
    WriterLease,
    Written,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.testing.simulator.clock import Life

T = TypeVar("T")


class Server(Protocol):
    """What happens between the store and a process."""

    async def answer(self) -> None:
        """The way of an answer: it takes time, and may fail."""

    def hears_after(self) -> float:
        """How long it takes a process to hear of the loss of its session, in seconds."""

    def tell(self, stream: str, token: Token) -> None:
        """The process knows of a token."""

    def tell_reserved(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """The process knows that tokens are its own."""


class ProcessStore:
    """The store as one process sees it: answers take their time, too."""

    def __init__(self, life: Life, store: FactStore, server: Server) -> None:
        self._life = life
        self._store = store
        self._server = server

    async def _after(self, asked: Awaitable[T]) -> T:
        answer = await asked
        await self._server.answer()
        return answer

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> WriterLease:
        """Become ``writer``."""
        lease = await self._after(self._store.open_writer(writer, streams))
        return ProcessLease(lease, self._life, self._server)

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Look at streams from outside."""
        return await self._after(self._store.observe(streams))

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch."""
        return await self._after(self._store.fence(stream, writer))

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token of each writer."""
        return await self._after(self._store.reached(stream, span))

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Put positions on record."""
        await self._after(self._store.record_positions(stream, linear, writers))

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Facts in ``span``."""
        return await self._after(self._store.page(stream, span, writer, limit))

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A follower's positions on record."""
        return await self._store.follower_positions(follower)

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Not asked of a process: deliveries use the database itself."""
        raise NotImplementedError


class ProcessLease:
    """A lease as its process sees it: that its session is lost it hears late."""

    def __init__(self, lease: WriterLease, life: Life, server: Server) -> None:
        self.writer = lease.writer
        self._lease = lease
        self._life = life
        self._server = server

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Have ``call(reason)`` called some time after the session was lost."""

        def lost(reason: str) -> None:
            self._life.callLater(self._server.hears_after(), call, reason)

        self._lease.on_lost(lost)

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[Written]:
        """Reserve and write."""
        answers = await self._lease.append(stream, drafts, floor)
        for written in answers:
            self._server.tell(stream.name, max(written.tokens))
        return answers

    async def reserve(self, stream: Stream, count: int, floor: Token) -> Sequence[Token]:
        """Take tokens."""
        tokens = await self._lease.reserve(stream, count, floor)
        self._server.tell_reserved(stream, tokens)
        return tokens

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write at reserved tokens."""
        await self._lease.write(stream, facts)

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Give tokens back."""
        await self._lease.release(stream, tokens)

    async def close(self) -> None:
        """Give the name free."""
        await self._lease.close()
