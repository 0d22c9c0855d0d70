"""The simulated database as a process sees it, with delays and lost replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from simulator.clock import Process
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
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


class DatabaseLink(Protocol):
    """The link between the store and a process."""

    async def answer(self) -> None:
        """Deliver a reply: takes time, and may fail."""

    def session_loss_delay_s(self) -> float:
        """Seconds until a process learns of the loss of its session."""

    def note_token(self, stream: str, token: Token) -> None:
        """The process knows a token."""

    def note_reservation(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """The process knows that it has reserved these tokens."""


class ProcessStore:
    """The store for one process: replies are delayed, and may be lost."""

    is_late = False

    def __init__(self, process: Process, store: FactStore, link: DatabaseLink) -> None:
        self._process = process
        self._store = store
        self._link = link

    async def _after(self, asked: Awaitable[T]) -> T:
        answer = await asked
        await self._link.answer()
        return answer

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> WriterLease:
        """Take the lease of ``writer``; a lost reply ends the connection, and the session with it."""
        lease = await self._store.open_writer(writer, streams)
        try:
            await self._link.answer()
        except SynreplError:
            with suppress(SynreplError):
                await lease.close()
            raise
        return ProcessLease(lease, self._process, self._link)

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Observe streams."""
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
        """Record positions."""
        await self._after(self._store.record_positions(stream, linear, writers))

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that can have been given out."""
        return await self._after(self._store.given_out(stream))

    async def confirm(self, announced: Mapping[str, Mapping[str, Token]]) -> int:
        """Confirm a server that was promoted."""
        return await self._after(self._store.confirm(announced))

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Facts in ``span``."""
        return await self._after(self._store.page(stream, span, writer, limit))

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """The recorded positions of a follower."""
        return await self._store.follower_positions(follower)

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Not used by processes: deliveries use the database directly."""
        raise NotImplementedError

    async def named_followers(self) -> Sequence[NamedFollower]:
        """All named followers."""
        return await self._after(self._store.named_followers())

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Renew the lease that keeps unacknowledged facts of a named follower."""
        await self._after(self._store.renew_lease(follower, streams, lease_s))

    async def mark(self, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
        """Record a watermark of a stream, and return older ones."""
        return await self._after(self._store.mark(stream, keep_s, max_s))

    async def trim(self, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
        """Delete the oldest facts that may be trimmed."""
        return await self._after(self._store.trim(stream, cap, forced, limit))


class ProcessLease:
    """A lease for one process, which learns late that its session is lost."""

    def __init__(self, lease: WriterLease, process: Process, link: DatabaseLink) -> None:
        self.writer = lease.writer
        self._lease = lease
        self._process = process
        self._link = link

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Register ``call(reason)``, called some time after the session was lost."""

        def session_lost(reason: str) -> None:
            self._process.callLater(self._link.session_loss_delay_s(), call, reason)

        self._lease.on_lost(session_lost)

    def epoch(self, stream: Stream) -> int:
        """The epoch it writes under."""
        return self._lease.epoch(stream)

    async def append(
        self, stream: Stream, drafts: Sequence[Draft], floor: Token
    ) -> Sequence[AppendResult]:
        """Reserve and write."""
        answers = await self._lease.append(stream, drafts, floor)
        for written in answers:
            self._link.note_token(stream.name, max(written.tokens))
        return answers

    async def transact(
        self,
        name: str,
        streams: Sequence[Stream],
        work: Callable[[Transaction, Outbox], T],
        begin: Callable[[], Mapping[str, Token]],
    ) -> TransactionResult[T]:
        """Change and append."""
        done = await self._lease.transact(name, streams, work, begin)
        for stream, facts in done.facts.items():
            self._link.note_token(stream, facts[-1].token)
        return done

    async def reserve(self, stream: Stream, count: int, floor: Token) -> Sequence[Token]:
        """Reserve tokens."""
        tokens = await self._lease.reserve(stream, count, floor)
        self._link.note_reservation(stream, tokens)
        return tokens

    async def write(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Write at reserved tokens."""
        await self._lease.write(stream, facts)

    async def release(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """Release tokens."""
        await self._lease.release(stream, tokens)

    async def close(self) -> None:
        """Give the name free."""
        await self._lease.close()
