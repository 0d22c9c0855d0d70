"""Facts in memory: streams that are lost with their writer, and the fake of Postgres.

It keeps the rules at the top of :mod:`synrepl.storage.store`, so one contract
suite runs against it and against :class:`~.postgres_store.PostgresStore`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Range, Token
from synrepl.storage.memory_lease import MemoryKeys, MemoryLease
from synrepl.storage.memory_stream import MemoryStream
from synrepl.storage.store import Observation, Page, WriterTaken
from synrepl.streams.definition import Stream

#: How long a predecessor may keep a writer's name, in seconds, and how often to look.
TAKEOVER_S = 5.0
_TAKEOVER_STEP_S = 0.1

MAX_ROWS_PER_STREAM = 100_000
MAX_KEYS = 10_000


class MemoryStore:
    """Streams of facts in memory; any number of leases, of as many make-believe processes.

    Every operation is a few atomic steps with :meth:`step` between them, where a
    test or a simulator can suspend it, let others go first, or make it fail.

    :param max_rows_per_stream: when a stream has more, its oldest facts are dropped;
        who asks for them is told so by ``Trimmed``
    :param max_keys: how many idempotency keys are remembered
    :param holder: who holds names taken here, for a person who is refused one
    """

    def __init__(
        self,
        scheduler: Scheduler,
        max_rows_per_stream: int = MAX_ROWS_PER_STREAM,
        max_keys: int = MAX_KEYS,
        holder: str = "this process",
    ) -> None:
        self._scheduler = scheduler
        self._max_rows = max_rows_per_stream
        self._holder = holder
        self._keys = MemoryKeys(max_keys)
        self._streams: dict[str, MemoryStream] = {}
        self._followers: dict[str, dict[tuple[str, str], Token]] = {}

    async def step(self, what: str) -> None:
        """Called before, between and after the atomic parts of each operation; for subclasses.

        An error raised here is the operation's. Whether it has taken effect by
        then is in the name.

        :param what: ``append``, ``append reserved`` (rows invisible), ``append
            committed``; ``reserve``, ``reserved``; ``write``, ``write entered``,
            ``write committed``; and before their only part ``open writer``,
            ``release``, ``close``, ``observe``, ``fence``, ``page``, ``reached``,
            ``record positions``, ``follower positions``, ``record follower``
        """

    def set_sequence(self, stream: Stream, token: Token) -> None:
        """Put a sequence somewhere else, as a failover or a restored dump does."""
        self._of(stream).last = token

    async def open_writer(self, writer: str, streams: Sequence[Stream]) -> MemoryLease:
        """Become ``writer``, once nobody else is and no transaction of a predecessor runs."""
        await self.step("open writer")
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
        lease = MemoryLease(writer, claims, self._keys, self.step)
        for memory in memories:
            state = memory.writer(writer)
            state.epoch += 1
            state.held, state.session = True, lease
            memory.take(0, 0)  # a sequence that is behind is moved forward now
            claims[memory.stream.name] = memory, state.epoch
        return lease

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Look at streams from outside."""
        await self.step("observe")
        return {stream.name: self._of(stream).observation() for stream in streams}

    async def fence(self, stream: Stream, writer: str) -> bool:
        """Raise a dead writer's epoch once nothing of it can still commit."""
        await self.step("fence")
        return self._of(stream).fence(writer)

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Facts in ``span``, about ``limit`` rows at a time."""
        await self.step("page")
        return self._of(stream).page(span, writer, limit)

    async def reached(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The largest token in ``span`` of each writer that has one there."""
        await self.step("reached")
        return self._of(stream).reached(span)

    async def record_positions(
        self, stream: Stream, linear: Token, writers: Mapping[str, Token]
    ) -> None:
        """Put positions on record; of writers that the stream has, and never back."""
        await self.step("record positions")
        memory = self._of(stream)
        memory.recorded = max(memory.recorded, linear)
        for name, position in writers.items():
            known = memory.writers.get(name)
            if known is not None:
                known.position = max(known.position, position)

    async def follower_positions(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """A named follower's positions by (stream, writer)."""
        await self.step("follower positions")
        return dict(self._followers.get(follower, {}))

    async def record_follower(
        self, follower: str, positions: Mapping[tuple[str, str], Token]
    ) -> None:
        """Keep a follower's positions; never moves one back."""
        await self.step("record follower")
        known = self._followers.setdefault(follower, {})
        for key, position in positions.items():
            known[key] = max(position, known.get(key, 0))

    def _of(self, stream: Stream) -> MemoryStream:
        found = self._streams.get(stream.name)
        if found is None:
            found = self._streams[stream.name] = MemoryStream(stream, self._max_rows)
        return found
