"""Up to where a stream may be read, found by repeated looks from outside (R5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

from synrepl.core.tokens import Token
from synrepl.pipeline.database.safe_bound import SafeBound
from synrepl.positions.settling import Settling
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Holder, Observation


class StreamBounds:
    """The safe bound of one stream of synrepl's own. It never goes back.

    What is on record is safe at once. Beyond it, a writer is safe up to the last token that
    the sequence had given out when nobody held one of that writer's; :class:`.Settling` tells
    when those who did are gone. A writer that died and has not been fenced off proves nothing.
    """

    def __init__(self) -> None:
        self._settling: dict[str, Settling] = {}
        self._bound = PositionVector()

    def take_in(self, seen: Observation, locks: bool) -> SafeBound:
        """Take in one look.

        :param locks: who holds tokens was visible, as on a primary; on a standby only
            what is on record counts
        """
        at = dict(self._bound.writers)
        waits_for: list[str] = []
        for writer, state in seen.writers.items():
            at[writer] = max(state.position, seen.recorded, self._bound[writer])
            settling = self._settling.setdefault(writer, Settling())
            dead = state.held and not state.alive
            if locks and not dead:
                holders = [holder.identity for holder in state.holders]
                at[writer] = max(at[writer], settling.observe(seen.last, holders))
            if locks and at[writer] < seen.last:
                waits_for += _kept_by(writer, dead, state.holders, settling.holders)
        linear = max(seen.recorded, self._bound.linear)
        if locks and at:
            linear = max(linear, min([*at.values(), seen.last]))
        self._bound = PositionVector(at, linear)
        last = max(seen.last, linear) if locks else linear
        return SafeBound(self._bound, last, seen.trimmed, tuple(waits_for))


def _kept_by(
    writer: str, dead: bool, holders: Iterable[Holder], keeping: Collection[Hashable]
) -> Iterator[str]:
    """What keeps a writer's bound, for a person."""
    if dead:
        yield f"writer {writer!r}, which died and has not been fenced off (a running master does it)"
    for holder in holders:
        if holder.identity in keeping:
            yield f"writer {writer!r} ({holder.describe})"


class ForeignBounds:
    """The safe bound of one stream in a real Synapse's database. It never goes back.

    What Synapse has on record is safe, writer by writer, and what all of them have is to those
    who are not on record what it is to Synapse itself. For streams of which it records
    nothing there is no proof from outside, for a token may be taken before the transaction
    that uses it begins. There the bound is what the stream had reached at some look, once
    ``settle_s`` seconds have passed and every transaction that was open *at their end* is over.

    :param settle_s: how long a process may take from a token to its transaction, in seconds
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._settling = Settling()
        self._waiting: deque[tuple[float, Token]] = deque()  # when and what; both rise
        self._begun: Token = 0
        self._bound = PositionVector()

    def take_in(
        self,
        recorded: Mapping[str, Token],
        last: Token,
        open_transactions: Iterable[Hashable],
        now: float,
    ) -> SafeBound:
        """Take in one look.

        :param recorded: by writer, the position on record
        :param last: the last token that the stream is known to have given out
        :param open_transactions: of this database, each by what tells it from all others, and
            as text for a person; looked for after ``last``
        :param now: when that was, of a clock that does not go back, in seconds
        """
        waiting = self._waiting
        while waiting and waiting[-1][1] > last:  # it went back, and may give them out again
            waiting.pop()
        if last > (waiting[-1][1] if waiting else self._begun):
            waiting.append((now, last))
        self._begun = min(self._begun, last)
        while waiting and now - waiting[0][0] >= self._settle_s:
            # Whoever has a token up to here is in its transaction by now, or done with it.
            self._begun = waiting.popleft()[1]
        settled = self._settling.observe(self._begun, list(open_transactions))
        at = dict(self._bound.writers)
        for writer, token in recorded.items():
            at[writer] = max(token, self._bound[writer])
        linear = max(self._bound.linear, settled, min(recorded.values(), default=0))
        self._bound = PositionVector(at, linear)
        waits_for = tuple(sorted(map(str, self._settling.holders)))
        if waiting and not waits_for:
            # Unless somebody is known, it is who has a token and has not begun.
            waits_for = (f"transactions that may begin within {self._settle_s:g} s",)
        return SafeBound(self._bound, max(last, linear), 0, waits_for)
