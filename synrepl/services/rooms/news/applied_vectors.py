"""How far this process has applied the streams that clients read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.services.position_waiters import PositionWaiters
from synrepl.services.rooms.news.sync_token import SYNC_STREAMS, SyncToken, server_tag
from synrepl.services.sources import LINEAR, Key
from synrepl.streams.definition import Fact, Stream

_NAMES = tuple(stream.name for stream in SYNC_STREAMS)

#: They are lost with their writer: a client's position above ours comes from before it started again.
_IN_MEMORY = frozenset(stream.name for stream in SYNC_STREAMS if stream.in_memory)


class AppliedVectors:
    """The positions of this process in the streams of a sync token.

    A position is reported here last, when caches are invalidated and its facts are applied (R4). On a master
    this is a :class:`.PositionListener`. In a worker the positions are those of its lanes, not of its
    handlers, so a handler that fails holds no client back.

    A client may have a token of another process, which is ahead of this one in some streams. Answers
    never repeat anything all the same, because the next token covers both; see :meth:`next_token`.

    :param server: name of the server
    :ivar listeners: called with (stream, writer, position) before a moved position is in
        :meth:`current`; the writer is ``""`` for the linear position
    """

    def __init__(self, scheduler: Scheduler, server: str) -> None:
        self._writers: dict[str, dict[str, Token]] = {name: {} for name in _NAMES}
        self._linear: dict[str, Token] = dict.fromkeys(_NAMES, 0)
        self._current = SyncToken(server_tag(server))
        self._changed: set[str] = set()
        self._waiters = PositionWaiters(scheduler)
        self.listeners: list[Callable[[str, str, Token], object]] = []

    # -- moves ------------------------------------------------------------------------

    def begin(self, stream: str, writers: Mapping[str, Token], linear: Token) -> None:
        """Take over the positions of a master that starts."""
        if stream in self._writers:
            for writer, position in writers.items():
                self.moved(stream, writer, position)
            self.moved(stream, LINEAR, linear)

    def moved(self, stream: str, writer: str, position: Token) -> None:
        """Note that a position has moved.

        It never goes back, except in streams in memory, whose writers begin again.

        :param writer: ``""`` for the linear position
        """
        writers = self._writers.get(stream)
        if writers is None:
            return
        before = self._linear[stream] if writer == LINEAR else writers.get(writer)
        if before is not None and (position == before or self._goes_back(stream, position, before)):
            return
        for listener in self.listeners:
            listener(stream, writer, position)
        if writer == LINEAR:
            self._linear[stream] = position
        else:
            writers[writer] = position
        self._changed.add(stream)
        self._waiters.moved((stream, writer), position)

    def _goes_back(self, stream: str, position: Token, before: Token) -> bool:
        return position < before and stream not in _IN_MEMORY

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """A writer's position has advanced on this master."""
        self.moved(stream.name, writer, new)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """The linear position has advanced on this master."""
        self.moved(stream.name, LINEAR, new)

    # -- positions --------------------------------------------------------------------

    def current(self) -> SyncToken:
        """The token of everything that is applied; the same object until something moves."""
        if self._changed:
            vectors = {name: self._vector(name) for name in self._changed}
            self._changed.clear()
            self._current = self._current.replace(vectors)
        return self._current

    def writers(self, stream: str) -> Mapping[str, Token]:
        """The position of each writer, including those that the linear position covers."""
        return self._writers[stream]

    def _vector(self, stream: str) -> PositionVector:
        """The positions without writers that the linear position covers, as a token should be short."""
        linear = self._linear[stream]
        writers = {name: at for name, at in self._writers[stream].items() if at > linear}
        return PositionVector(writers, linear)

    def readable_since(self, since: SyncToken) -> SyncToken:
        """A client's token, without positions in memory that are from before a writer started again."""
        lost = {
            name: PositionVector()
            for name, wanted in since.vectors.items()
            if name in _IN_MEMORY and not self.current().vectors[name].covers(wanted)
        }
        return since.replace(lost)

    def next_token(self, since: SyncToken, upto: SyncToken) -> SyncToken:
        """The token after an answer from ``since`` up to ``upto``.

        A fact is told if its writer's position in ``since`` is below it and that in ``upto`` is not, so the
        union of both is what the client knows.
        """
        if since == upto:
            return upto
        ahead = {
            name: at.merge(mine)
            for name, at, mine in zip(_NAMES, since[1:], upto[1:], strict=True)
            if at != mine and name not in _IN_MEMORY and not mine.covers(at)
        }
        if not ahead:
            return upto
        merged = {
            name: PositionVector({w: at for w, at in v.writers.items() if at > v.linear}, v.linear)
            for name, v in ahead.items()
        }
        return upto.replace(merged)

    # -- waiting ----------------------------------------------------------------------

    def missing(self, token: SyncToken) -> Iterator[tuple[str, str, Token]]:
        """The positions of a token that this process has not reached: stream, writer and token.

        A linear position is reached when any writer is there: in a worker the linear position is known late,
        and idle writers are. A writer's own position has to be reached by itself.
        """
        mine_by_stream = self.current()
        for name, mine, wanted in zip(_NAMES, mine_by_stream[1:], token[1:], strict=True):
            if name in _IN_MEMORY or mine == wanted:
                continue
            if wanted.linear > max([mine.linear, *self._writers[name].values()]):
                yield name, LINEAR, wanted.linear
            for writer, at in wanted.writers.items():
                if max(mine.linear, self._writers[name].get(writer, 0)) < at:
                    yield name, writer, at

    async def wait(self, stream: str, writer: str, token: Token, timeout_s: float) -> bool:
        """Wait until a position that :meth:`missing` has returned is reached.

        :returns: False after ``timeout_s`` seconds
        :raises TooManyWaiters: :raises NoLongerWaiting: the process stops
        """
        keys: list[Key] = [(stream, writer), (stream, LINEAR)]
        if writer == LINEAR:
            keys = [(stream, each) for each in (*self._writers[stream], LINEAR)]
        return await self._waiters.wait(keys, token, timeout_s) is not None

    def stop(self) -> None:
        """Fail all waits, and later ones: the process stops."""
        self._waiters.stop()
