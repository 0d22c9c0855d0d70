"""The in-memory store: for streams that are lost with their writer, and as a fake of Postgres.

It follows the rules described in :mod:`synrepl.storage.store`, so one contract
suite runs against it and against :class:`~.postgres_store.PostgresStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.storage.memory.changes import MemoryChanges
from synrepl.storage.memory.lease import MemoryKeys, MemoryLease
from synrepl.storage.memory.server import MemoryServer
from synrepl.storage.memory.stream import MemoryStream
from synrepl.storage.position_marks import PositionMark, add_mark, aged_positions
from synrepl.storage.store import (
    AgedPositions,
    NamedFollower,
    Observation,
    Page,
    TrimResult,
    WriterTaken,
)
from synrepl.streams.definition import Stream

#: Seconds to wait for a predecessor to release a writer name, and between checks.
TAKEOVER_S = 5.0
_TAKEOVER_STEP_S = 0.1

MAX_ROWS_PER_STREAM = 100_000
MAX_KEYS = 10_000


class _FollowerLease(NamedTuple):
    """The lease of a follower; ``streams`` is None for all."""

    expires_at: float
    streams: frozenset[str] | None
    seen_at: float | None


class MemoryStore:
    """Streams of facts in memory, with any number of leases of simulated processes.

    Every operation is a few atomic steps with :meth:`step` between them, where a
    test or a simulator can suspend it, run others first, or make it fail.

    :param max_rows_per_stream: beyond it, the oldest facts are dropped; reading them
        raises ``Trimmed``
    :param max_keys: maximum number of remembered idempotency keys
    :param holder: description of the holder of names, for others that are refused one
    :param begin_changes: makes the transaction for work functions of ``transact``;
        there are no tables, so by default it refuses all SQL
    """

    is_late = False

    def __init__(
        self,
        scheduler: Scheduler,
        max_rows_per_stream: int = MAX_ROWS_PER_STREAM,
        max_keys: int = MAX_KEYS,
        holder: str = "this process",
        begin_changes: Callable[[], MemoryChanges] = MemoryChanges,
    ) -> None:
        self._scheduler = scheduler
        self._max_rows = max_rows_per_stream
        self._holder = holder
        self._begin_changes = begin_changes
        self._keys = MemoryKeys(max_keys)
        self.server = MemoryServer()
        self._streams: dict[str, MemoryStream] = {}
        self._followers: dict[str, dict[tuple[str, str], Token]] = {}
        self._leases: dict[str, _FollowerLease] = {}
        self._marks: dict[str, list[PositionMark]] = {}

    async def step(self, what: str) -> None:
        """Called before, between and after the atomic parts of each operation; for subclasses.

        An error raised here becomes that of the operation. The name shows whether the
        operation has taken effect by then.

        :param what: ``append``, ``append reserved`` (rows invisible), ``append
            committed``; ``transact`` (before the work), ``transact reserved`` (after
            it; neither rows nor changes visible), ``transact committed``; ``reserve``,
            ``reserved``; ``write``, ``write entered``, ``write committed``; and before their only part ``open writer``,
            ``release``, ``close``, ``observe``, ``given out``, ``fence``, ``page``, ``reached``,
            ``record positions``, ``follower positions``, ``record follower``,
            ``named followers``, ``renew lease``, ``mark``, ``trim``, ``confirm``
        """

    def set_sequence(self, stream: Stream, token: Token) -> None:
        """Set a sequence to another token, as a failover or a restored dump does."""
        self._of(stream).last = token

    def lose(self, stream: Stream, above: Token) -> None:
        """Drop the facts above a token, as a promoted server may."""
        self._of(stream).lose(above)

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> MemoryLease:
        """Become ``writer``, once no other process is and no transaction of a predecessor runs."""
        await self.step("open writer")
        self.server.require_confirmed()
        memories = [self._of(stream) for stream in streams]
        give_up = self._scheduler.seconds() + TAKEOVER_S
        while True:
            taken = [m for m in memories if m.writer(writer).session is not None]
            if not taken and not any(m.writer(writer).transactions for m in memories):
                return self._claim(writer, memories)
            if taken and self._scheduler.seconds() >= give_up:
                name = taken[0].stream.name
                raise WriterTaken(writer=writer, stream=name, holder=self._holder)
            await self._scheduler.sleep(_TAKEOVER_STEP_S)

    def _claim(self, writer: str, memories: Sequence[MemoryStream]) -> MemoryLease:
        claims: dict[str, tuple[MemoryStream, int]] = {}
        lease = MemoryLease(writer, claims, self._keys, self.step, self._begin_changes)
        for memory in memories:
            state = memory.writer(writer)
            state.epoch += 1
            state.held, state.session = True, lease
            memory.take(0, 0)  # moves a sequence that is behind forward
            claims[memory.stream.name] = memory, state.epoch
        return lease

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Observe streams."""
        await self.step("observe")
        self.server.require_confirmed()
        return {stream.name: self._of(stream).observation() for stream in streams}

    async def given_out(self, stream: Stream) -> Token:
        """The largest token that can have been given out."""
        await self.step("given out")
        return self._of(stream).given_out()

    async def confirm(self, announced: Mapping[str, Mapping[str, Token]]) -> int:
        """Confirm a server that was promoted."""
        await self.step("confirm")
        server = self.server
        if not server.is_confirmed:
            steps = server.confirm()
            for name, memory in self._streams.items():
                proofs = self.followers_record(name)
                memory.fail_over(server.incarnation, steps, announced.get(name, {}), proofs)
        return server.incarnation

    def followers_record(self, stream: str) -> Iterator[tuple[str, Token]]:
        """Recorded positions of followers in a stream, as (writer, position); "" for all writers."""
        for follower in self._followers:
            for (of, writer), position in self.on_record(follower).items():
                if of == stream:
                    yield writer, position

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once no transaction of it can still commit."""
        await self.step("fence")
        return self._of(stream).fence(writer)

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """A page of about ``limit`` rows of the facts in ``span``."""
        await self.step("page")
        return self._of(stream).page(span, writer, limit)

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""
        await self.step("reached")
        return self._of(stream).reached(span)

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Record positions of known writers; none is moved back."""
        await self.step("record positions")
        self.server.require_confirmed()
        memory = self._of(stream)
        memory.recorded = max(memory.recorded, linear)
        for name, position in writers.items():
            known = memory.writers.get(name)
            if known is not None:
                known.position = max(known.position, position)

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's positions by (stream, writer)."""
        await self.step("follower positions")
        return dict(self.on_record(follower))

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Record a follower's positions; none is moved back."""
        await self.step("record follower")
        self.server.require_confirmed()
        known = self._followers.setdefault(follower, {})
        for key, position in positions.items():
            known[key] = max(position, known.get(key, 0))

    def on_record(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """The recorded positions of a follower; for subclasses that store them elsewhere."""
        return self._followers.get(follower, {})

    # -- trimming -----------------------------------------------------------------------

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Retain facts that a named follower has not acknowledged."""
        await self.step("renew lease")
        followed = None if streams is None else frozenset(streams)
        now = self._scheduler.seconds()
        self._leases[follower] = _FollowerLease(now + lease_s, followed, now)

    async def named_followers(self) -> Sequence[NamedFollower]:
        """All named followers, by name; positions of handlers are not recorded here."""
        await self.step("named followers")
        now, found = self._scheduler.seconds(), []
        for name in sorted({*self._followers, *self._leases}):
            lease = self._leases.get(name)
            at = dict(self.on_record(name))
            if lease is None:
                found.append(NamedFollower(name, None, None, None, at, {}))
            else:
                left = lease.expires_at - now
                seen = None if lease.seen_at is None else now - lease.seen_at
                found.append(NamedFollower(name, lease.streams, left, seen, at, {}))
        return found

    async def mark(self, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
        """Mark the stream's current position, and return past ones."""
        await self.step("mark")
        now, position = self._scheduler.seconds(), self._of(stream).recorded
        marks = add_mark(self._marks.get(stream.name, ()), now, position, keep_s, max_s)
        self._marks[stream.name] = marks
        return aged_positions(marks, now, position, keep_s, max_s)

    async def trim(self, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
        """Delete the oldest facts that may be trimmed."""
        await self.step("trim")
        live = list(self._followers_of(stream))

        @cache
        def acknowledged(writer: str) -> tuple[Token, str | None]:
            keys = (stream.name, writer), (stream.name, "")
            reached = ((max(at.get(key, 0) for key in keys), name) for name, at in live)
            return min(reached, default=(MAX_TOKEN, None))

        return self._of(stream).trim(cap, forced, limit, acknowledged)

    def _followers_of(
        self, stream: Stream
    ) -> Iterator[tuple[str, Mapping[tuple[str, str], Token]]]:
        """Followers with a running lease, and their acknowledged positions."""
        now = self._scheduler.seconds()
        for follower, lease in self._leases.items():
            if lease.expires_at > now and (lease.streams is None or stream.name in lease.streams):
                yield follower, self.on_record(follower)

    # -- accidents, for tests -----------------------------------------------------------

    def crash_session(self, stream: Stream, writer: str) -> None:
        """Lose the session that holds a writer; see :meth:`.MemoryLease.crash`."""
        session = self._of(stream).writer(writer).session
        assert isinstance(session, MemoryLease)
        session.crash()

    def set_heartbeat(self, follower: str, seen_at: float | None) -> None:
        """Change the time of a follower's last heartbeat, in seconds by the clock; None for never."""
        self._leases[follower] = self._leases[follower]._replace(seen_at=seen_at)

    def _of(self, stream: Stream) -> MemoryStream:
        found = self._streams.get(stream.name)
        if found is None:
            found = self._streams[stream.name] = MemoryStream(stream, self._max_rows, self.server)
        return found
