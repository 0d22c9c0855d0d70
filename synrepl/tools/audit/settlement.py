"""Observes what is committed, and waits until this process has applied it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from synrepl.core.clock import Clock
from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.services.sources import Key
from synrepl.services.waiting.applied_positions import AppliedPositions, NotFollowed
from synrepl.services.waiting.wait_for import WaitFor, WaitTimedOut
from synrepl.storage.store import FactStore, Observation
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream

#: Maximum lag, in tokens, that is waited for.
MOST_TOKENS = 1_000_000


class FarBehind(Unavailable):
    """this process is at {after} of stream {stream!r}, which is at {last}: too far behind to wait for it"""


class InMasterMemory(Unavailable):
    """stream {stream!r} is kept in the master's memory, where this process cannot see what is committed; audit the master"""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed state of some streams at one moment.

    :ivar seen: the observation of each stream, by name
    :ivar last: the last token of each writer, unless this process has certainly applied it
    """

    seen: Mapping[str, Observation]
    last: Mapping[Key, Token]


class Settlement:
    """Waits until this process has caught up with the database.

    :param own: the positions of this process
    :param has_in_memory_streams: whether ``store`` contains the in-memory streams, as the
        master's does
    """

    def __init__(
        self,
        clock: Clock,
        catalogue: Catalogue,
        store: FactStore,
        own: AppliedPositions,
        waiting: WaitFor,
        has_in_memory_streams: bool,
    ) -> None:
        self._clock = clock
        self._catalogue = catalogue
        self._store = store
        self._own = own
        self._waiting = waiting
        self._has_in_memory_streams = has_in_memory_streams

    async def observe(self, names: Iterable[str]) -> Committed:
        """Observe what is committed in streams, except those that this process does not follow.

        :raises FarBehind: :raises InMasterMemory: and any error of the store
        """
        streams = [self._catalogue[name] for name in sorted(names) if self._is_followed(name)]
        for stream in streams:
            if stream.in_memory and not self._has_in_memory_streams:
                raise InMasterMemory(stream=stream.name)
        seen = await self._store.observe(streams)
        last: dict[Key, Token] = {}
        for stream in streams:
            span = Range(self._applied_upto(stream, seen[stream.name]), seen[stream.name].last)
            if not span.empty:
                reached = await self._store.reached(stream, span)
                last |= {(stream.name, writer): token for writer, token in reached.items()}
        return Committed({stream.name: seen[stream.name] for stream in streams}, last)

    async def reach(self, committed: Committed, until: float) -> bool:
        """Wait until this process has applied all of it; False if the deadline passes first.

        :param until: the deadline, in seconds of the clock
        :raises SynreplError: any other error of :meth:`.WaitFor.wait_for`
        """
        for (stream, writer), token in committed.last.items():
            left = max(0.0, until - self._clock.seconds())
            try:
                await self._waiting.wait_for(stream, writer, token, left)
            except WaitTimedOut:
                return False
        return True

    def position(self, stream: str, writer: str) -> tuple[str, Token]:
        """The name under which this process tracks a writer, and its position."""
        key = self._own.keys(stream, writer)[0]
        return key[1], self._own.position(key)

    def _is_followed(self, name: str) -> bool:
        """Whether this process has positions in a stream."""
        if name not in self._catalogue:
            return False
        try:
            self._own.keys(name, "")
        except NotFollowed:
            return False
        return True

    def _applied_upto(self, stream: Stream, seen: Observation) -> Token:
        """A token up to which this process has applied everything.

        Up to the recorded linear position, a writer has no facts beyond its own recorded position.
        """
        positions = (
            (max(map(self._own.position, self._own.keys(stream.name, writer))), state.position)
            for writer, state in seen.writers.items()
        )
        after = min([seen.recorded, *(own for own, recorded in positions if own < recorded)])
        if after < seen.last - MOST_TOKENS:
            raise FarBehind(after=after, stream=stream.name, last=seen.last)
        return after
