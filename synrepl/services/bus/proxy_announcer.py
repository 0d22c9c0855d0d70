"""A master speaks for itself, for plain SQL, and for the dead. The living announce themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import PositionListener, StreamState
from synrepl.services.bus.bus_publisher import AnnouncedPosition, BusPublisher
from synrepl.storage.store import WriterState
from synrepl.streams.definition import Fact, Stream

#: Seconds between looks at who has died.
LOOK_S = 1.0


class ProxyAnnouncer:
    """Lets those movements pass that this process has to announce; see :class:`PositionListener`.

    :param name: of the master, as a writer
    """

    def __init__(self, name: str, onward: PositionListener) -> None:
        self._name = name
        self._onward = onward
        self._states: Mapping[str, StreamState] = {}
        self._announced: dict[tuple[str, str], Token] = {}
        #: Whose facts have moved their positions here; perhaps nobody has said them.
        self._moved_unannounced: set[tuple[str, str]] = set()

    def begin(self, states: Mapping[str, StreamState]) -> None:
        """Learn from these who lives."""
        self._states = states

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Pass on moves of its own and of plain SQL.

        Of a writer that was a process only where it is goes out, soon: rows of it that
        it never said would be hidden by these, and lines that it did say may still be
        under way, amid which these could not be told apart.
        """
        if self._was_a_process(stream.name, writer):
            if facts or prev == new:
                self._moved_unannounced.add((stream.name, writer))
        elif self._announces_for(stream.name, writer):
            self._onward.writer_advanced(stream, writer, prev, new, facts)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Nobody on the bus has the linear view."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """Where those are that this process speaks for, as far as they ever wrote."""
        for name, state in self._states.items():
            for writer, position in state.positions.items():
                if self._announces_for(name, writer) and (position or writer == self._name):
                    yield AnnouncedPosition(state.stream, writer, position)

    def unannounced(self) -> list[AnnouncedPosition]:
        """Those that were not spoken for when this was last asked, or that have moved unsaid.

        A writer that dies may leave facts behind that it announced no more, and
        that moved its position here while it still lived.
        """
        before, now = self._announced, list(self.announced_positions())
        unsaid, self._moved_unannounced = self._moved_unannounced, set()
        self._announced = {_key(standing): standing.position for standing in now}
        told = []
        for standing in now:
            key, prev = _key(standing), before.get(_key(standing))
            if prev is None or key in unsaid:
                told.append(standing)
            elif self._was_a_process(*key) and prev != standing.position:
                told.append(standing._replace(prev=prev))
        return told

    def _announces_for(self, stream: str, writer: str) -> bool:
        if writer == self._name:
            return True
        known = self._seen(stream, writer)
        return known is not None and not (known.is_held and known.is_alive)

    def _was_a_process(self, stream: str, writer: str) -> bool:
        """It is, or was, another process than this one; plain SQL never is."""
        known = self._seen(stream, writer)
        return writer != self._name and known is not None and known.epoch > 0

    def _seen(self, stream: str, writer: str) -> WriterState | None:
        state = self._states.get(stream)
        observation = None if state is None else state.observation
        return None if observation is None else observation.writers.get(writer)


async def announce_dead_writers(
    scheduler: Scheduler, proxy: ProxyAnnouncer, bus_publisher: BusPublisher
) -> None:
    """Say where the dead were, soon after they are; to be spawned."""
    while True:
        await scheduler.sleep(LOOK_S)
        unannounced = proxy.unannounced()
        if unannounced:
            bus_publisher.announce(unannounced)


def _key(standing: AnnouncedPosition) -> tuple[str, str]:
    return standing.stream.name, standing.writer
