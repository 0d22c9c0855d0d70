"""Announces a master's own writer, plain SQL and dead writers on the bus.

Live writers announce themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import PositionListener, StreamState
from synrepl.services.bus.bus_publisher import AnnouncedPosition, BusPublisher
from synrepl.storage.store import WriterState
from synrepl.streams.definition import Fact, Stream

#: Seconds between two checks for dead writers.
CHECK_S = 1.0


class ProxyAnnouncer:
    """A :class:`.PositionListener` that passes on the advances which this process has to announce.

    :param name: the name of the master, as a writer
    :param onward: is notified of these advances
    """

    def __init__(self, name: str, onward: PositionListener) -> None:
        self._name = name
        self._onward = onward
        self._states: Mapping[str, StreamState] = {}
        self._announced: dict[tuple[str, str], Token] = {}
        #: Writers whose positions advanced here, while perhaps no process announced the facts.
        self._advanced: set[tuple[str, str]] = set()

    def begin(self, states: Mapping[str, StreamState]) -> None:
        """Take from these states which writers are alive."""
        self._states = states

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Pass on the advances of the own writer and of plain SQL.

        For a writer that was another process, only its position is announced, a little later.
        Sending its rows would hide earlier rows that it never announced. And its last lines may
        still be in transit, and could not be distinguished from these rows.
        """
        if self._is_other_process(stream.name, writer):
            if facts or prev == new:
                self._advanced.add((stream.name, writer))
        elif self._announces_for(stream.name, writer):
            self._onward.writer_advanced(stream, writer, prev, new, facts)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Ignored: no follower on the bus has the linear view."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """The positions of the writers that this process announces and that have ever written."""
        for name, state in self._states.items():
            for writer, position in state.positions.items():
                if self._announces_for(name, writer) and (position or writer == self._name):
                    yield AnnouncedPosition(state.stream, writer, position)

    def unannounced(self) -> list[AnnouncedPosition]:
        """Positions that have to be announced since the last call.

        These are the writers that died since, and dead ones that have advanced. A writer that
        dies may leave facts that it did not announce any more, although its position advanced
        here while it was still alive.
        """
        before, now = self._announced, list(self.announced_positions())
        advanced, self._advanced = self._advanced, set()
        self._announced = {_key(item): item.position for item in now}
        due = []
        for item in now:
            key, prev = _key(item), before.get(_key(item))
            if prev is None or key in advanced:
                due.append(item)
            elif self._is_other_process(*key) and prev != item.position:
                due.append(item._replace(prev=prev))
        return due

    def _announces_for(self, stream: str, writer: str) -> bool:
        if writer == self._name:
            return True
        known = self._seen(stream, writer)
        return known is not None and not (known.is_held and known.is_alive)

    def _is_other_process(self, stream: str, writer: str) -> bool:
        """Whether the writer is, or was, a process other than this one; plain SQL is not."""
        known = self._seen(stream, writer)
        return writer != self._name and known is not None and known.epoch > 0

    def _seen(self, stream: str, writer: str) -> WriterState | None:
        state = self._states.get(stream)
        observation = None if state is None else state.observation
        return None if observation is None else observation.writers.get(writer)


async def announce_dead_writers(
    scheduler: Scheduler, proxy: ProxyAnnouncer, bus_publisher: BusPublisher
) -> None:
    """Announce the positions of dead writers soon after their death, for as long as it runs."""
    while True:
        await scheduler.sleep(CHECK_S)
        unannounced = proxy.unannounced()
        if unannounced:
            bus_publisher.announce(unannounced)


def _key(item: AnnouncedPosition) -> tuple[str, str]:
    return item.stream.name, item.writer
