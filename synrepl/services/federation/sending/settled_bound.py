"""How far a stream is settled: no fact at or below it can still be committed."""

from __future__ import annotations

from collections.abc import Callable

from synrepl.core.tokens import Token
from synrepl.positions.settlement import SettlementTracker
from synrepl.storage.store import FactStore
from synrepl.streams.definition import Stream


class SettledBound:
    """Proves how far a stream is settled.

    The position that a process has of the stream proves it, too, but a worker may learn of it a second later.

    :param known: returns the linear position that the process knows
    """

    def __init__(self, store: FactStore, stream: Stream, known: Callable[[], Token]) -> None:
        self._store = store
        self._stream = stream
        self._known = known
        self._writers: dict[str, SettlementTracker] = {}

    async def upto(self, wanted: Token = 0) -> Token:
        """The bound, as it is known if that is at least ``wanted``, otherwise as an observation of the database proves it.

        :raises SynreplError: the database cannot be observed now
        """
        known = self._known()
        if 0 < wanted <= known:
            return known
        seen = (await self._store.observe([self._stream]))[self._stream.name]
        bounds = [seen.last]
        for writer, state in seen.writers.items():
            tracker = self._writers.setdefault(writer, SettlementTracker())
            if state.is_held and not state.is_alive:  # dead: nothing is proved until it is fenced
                bounds.append(tracker.bound)
            else:
                holders = [holder.identity for holder in state.holders]
                bounds.append(tracker.observe(seen.last, holders))
        return max(known, seen.recorded, min(bounds))
