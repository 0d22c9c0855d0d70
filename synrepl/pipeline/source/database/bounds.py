"""Safe bounds of streams, computed from repeated observations of the database (R5)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator

from synrepl.positions.settlement import SettlementTracker
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SafeBound
from synrepl.storage.store import Observation, ReservationHolder


class StreamBounds:
    """The safe bound of one stream in a database of synrepl's. It never decreases.

    Recorded positions are safe at once. Beyond them, a writer is safe up to the last token of the
    sequence at a moment when no transaction held a token of that writer; :class:`.SettlementTracker`
    detects when the transactions that did have ended. A dead writer that has not been fenced holds the bound.
    """

    def __init__(self) -> None:
        self._settling: dict[str, SettlementTracker] = {}
        self._bound = PositionVector()

    def update(self, seen: Observation, locks: bool) -> SafeBound:
        """Update the bound from one observation.

        :param locks: the locks on tokens were visible, as on a primary; on a standby only
            recorded positions count
        """
        at = dict(self._bound.writers)
        waits_for: list[str] = []
        for writer, state in seen.writers.items():
            at[writer] = max(state.position, seen.recorded, self._bound[writer])
            settling = self._settling.setdefault(writer, SettlementTracker())
            dead = state.is_held and not state.is_alive
            if locks and not dead:
                holders = [holder.identity for holder in state.holders]
                at[writer] = max(at[writer], settling.observe(seen.last, holders))
            if locks and at[writer] < seen.last:
                waits_for += _kept_by(writer, dead, state.holders, settling.holders)
        linear = max(seen.recorded, self._bound.linear)
        if locks and at:
            linear = max(linear, min([*at.values(), seen.last]))
        self._bound = PositionVector(at, linear)
        last = max(seen.last, seen.recorded) if locks else linear
        return SafeBound(self._bound, last, seen.trimmed, tuple(waits_for))


def _kept_by(
    writer: str, dead: bool, holders: Iterable[ReservationHolder], keeping: Collection[Hashable]
) -> Iterator[str]:
    """Descriptions of what holds a writer's bound back."""
    if dead:
        yield f"writer {writer!r}, which died and has not been fenced off (a running master does it)"
    for holder in holders:
        if holder.identity in keeping:
            yield f"writer {writer!r} ({holder.description})"
