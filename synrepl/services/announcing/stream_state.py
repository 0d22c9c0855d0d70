"""The positions of one stream, and which of its facts may be announced.

Facts reach this state in two ways: this process's own writer reports what it settled, and
observations of the database show the facts of other writers (other processes, plain SQL). Both
together give the two views of a stream: each writer's position, and the linear position over all
writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from synrepl.core.tokens import MAX_TOKEN, Token
from synrepl.positions.ledger import Ledger
from synrepl.positions.linear import LinearTracker
from synrepl.positions.settlement import SettlementTracker
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream


class PendingFacts:
    """Facts that wait for a position to pass them, returned in the order of their tokens.

    Usually a position passes facts as soon as they are added. So the sequence added last is kept
    as it is, and goes through the heap only if other facts wait.

    :ivar rows: number of waiting rows, without those added last
    """

    def __init__(self) -> None:
        self.rows = 0
        self._latest: Sequence[Fact] = ()
        self._heap: list[tuple[Token, Fact]] = []

    @property
    def last(self) -> Token:
        """The largest waiting token; 0 for none."""
        self._spread()
        return max(self._heap)[0] if self._heap else 0

    def add(self, facts: Sequence[Fact]) -> None:
        """Add facts, ascending, in a sequence that is not changed afterwards."""
        if facts:
            self._spread()
            self._latest = facts

    def take(self, position: Token) -> Sequence[Fact]:
        """Remove and return the facts at or below ``position``, in order."""
        latest, heap = self._latest, self._heap
        if not heap and (not latest or latest[-1].token <= position):
            self._latest = ()
            return latest
        self._spread()
        taken: list[Fact] = []
        while heap and heap[0][0] <= position:
            taken.append(heappop(heap)[1])
        self.rows -= sum(len(fact.rows) for fact in taken)
        return taken

    def clear(self) -> None:
        """Remove all facts."""
        self._latest = ()
        self._heap.clear()
        self.rows = 0

    def _spread(self) -> None:
        for fact in self._latest:
            heappush(self._heap, (fact.token, fact))
            self.rows += len(fact.rows)
        self._latest = ()


class PositionListener(Protocol):
    """Is notified when positions advance; for instance a :class:`.Publisher`."""

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """A writer's position has passed these facts.

        If ``prev`` equals ``new``, a failover has raised the position, and the facts in between
        are not known here.
        """

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """The linear position has passed these facts; None if they must be read from the table."""


class StreamState:
    """One stream's positions, as this process knows them.

    :param listener: is notified of every advance, in order
    :param held_rows: maximum number of rows held for the linear view
    """

    def __init__(
        self,
        stream: Stream,
        listener: PositionListener,
        held_rows: int = DEFAULT_SIZES.held_rows,
    ) -> None:
        self.stream = stream
        self._held_rows = held_rows
        self._listener = listener
        self.positions: dict[str, Token] = {}
        self._own = ""
        self._ledger: Ledger | None = None
        self._settled = PendingFacts()
        self._settled_tokens: list[Token] = []
        self._linear = LinearTracker(0)
        self._announced: Token = 0
        self._held = PendingFacts()
        self._spilled_upto: Token = 0
        self._settling: dict[str, SettlementTracker] = {}
        self._scanned: dict[str, Token] = {}
        self.observation: Observation | None = None
        self.incarnation = 0

    @property
    def linear(self) -> Token:
        """The announced linear position."""
        return self._announced

    @property
    def has_hole(self) -> bool:
        """Whether settled tokens wait behind an unknown one, so that a poll is needed."""
        return self._linear.has_hole

    def positions_to_announce(self) -> Iterator[tuple[str, Token]]:
        """Positions of the writers that have written or are alive; others follow when they write.

        Every stream has a writer for plain SQL. A real worker of 1.43 that received its position 0
        would go back to 0, and look for a process of that name. A removed writer is announced
        for ever: a follower that was away may lack its facts, or must learn that they are gone.
        And the writer may be added again, and continue from its position.
        """
        seen = {} if self.observation is None else self.observation.writers
        for writer, position in self.positions.items():
            if position or writer not in seen or seen[writer].is_held:
                yield writer, position

    # -- this process's own writer ------------------------------------------------

    def attach_ledger(self, writer: str, ledger: Ledger) -> None:
        """Announce from now on what the writer of this ledger settles."""
        self._own, self._ledger = writer, ledger
        self._settled.clear()
        self._settled_tokens.clear()
        self.positions.setdefault(writer, ledger.position)

    def own_recovered(self, facts: Sequence[Fact]) -> None:
        """Announce facts of the own writer found when its lease was acquired again."""
        assert self._ledger is not None
        self.announce(self._own, self._ledger.position, facts)

    def own_settled(self, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """The own writer settled ``tokens``, ascending; ``facts`` are those that were committed."""
        if self._ledger is None:  # that was on a server which was replaced
            return
        self._settled.add(facts)
        new = self._ledger.position
        self.announce(self._own, new, self._settled.take(new))
        self._linear.all_settled(self._announced_tokens(tokens, new))
        self.advance_linear()

    def _announced_tokens(self, tokens: Sequence[Token], position: Token) -> Iterable[Token]:
        """The settled tokens that the linear position may pass.

        A token above the own position waits, since its fact is not announced yet.
        """
        waiting = self._settled_tokens
        if not waiting and (not tokens or tokens[-1] <= position):
            return tokens
        for token in tokens:
            heappush(waiting, token)
        passed: list[Token] = []
        while waiting and waiting[0] <= position:
            passed.append(heappop(waiting))
        return passed

    # -- other writers, seen through the database -------------------------------------

    def begin(self, observation: Observation, reached: Mapping[str, Token]) -> None:
        """Take positions from the record and the table, before followers connect.

        :param reached: each writer's largest token above the recorded linear position
        """
        self.observation = observation
        self.incarnation = observation.incarnation
        self._linear = LinearTracker(observation.recorded)
        self._announced = observation.recorded
        # Facts above the linear position may have been announced; they are only in the table.
        self._spilled_upto = observation.last
        for writer, seen in observation.writers.items():
            if writer == self._own:
                continue
            self.positions[writer] = seen.position
            self._scanned[writer] = observation.recorded
            if not seen.holders and not (seen.is_held and not seen.is_alive):
                self._scanned[writer] = max(observation.last, observation.recorded)
                self.positions[writer] = max(seen.position, reached.get(writer, 0))
        bounds = [*self._scanned.values(), observation.last, self._own_floor()]
        self._linear.settled_upto(min(bounds))
        self.advance_linear()

    def fail_over(self, observation: Observation) -> None:
        """Continue above the floor of a server that has taken over, and drop the previous state.

        The own writer is treated like any other until it holds its lease again.
        """
        floor = observation.floor
        self.observation = observation
        self.incarnation = observation.incarnation
        self._own, self._ledger = "", None
        self._settled.clear()
        self._settled_tokens.clear()
        self._held.clear()
        self._settling.clear()
        self._linear = LinearTracker(floor)
        self._scanned = dict.fromkeys([*observation.writers, *self.positions], floor)
        for writer in self._scanned:
            self.announce_failover(writer, floor)
        prev, self._announced = self._announced, floor
        self._listener.linear_advanced(self.stream, prev, floor, None)

    def announce_failover(self, writer: str, position: Token) -> None:
        """Announce a position after a failover, so that followers check which facts survived."""
        self.positions[writer] = max(position, self.positions.get(writer, 0))
        at = self.positions[writer]
        self._listener.writer_advanced(self.stream, writer, at, at, ())

    def bounds(self, observation: Observation) -> dict[str, Token]:
        """The token up to which each other writer is settled, as proved by this observation."""
        self.observation = observation
        if self._ledger is not None:
            self._ledger.saw(observation.last)
        found: dict[str, Token] = {}
        for writer, seen in observation.writers.items():
            if writer == self._own:
                continue
            settling = self._settling.get(writer)
            if settling is None:
                # A writer seen for the first time has nothing at or below the linear position.
                start = self._scanned.setdefault(writer, self._linear.position)
                settling = self._settling[writer] = SettlementTracker(start)
            if seen.is_held and not seen.is_alive:  # dead: nothing is proved until it is fenced
                found[writer] = settling.bound
            else:
                found[writer] = settling.observe(
                    observation.last, [holder.identity for holder in seen.holders]
                )
        return found

    def scanned(self, writer: str) -> Token:
        """The token up to which the table was read for facts of another writer."""
        return self._scanned.get(writer, 0)

    def found(self, writer: str, upto: Token, facts: Sequence[Fact]) -> None:
        """Announce the new facts of another writer, for which the table was read up to ``upto``."""
        self._scanned[writer] = upto
        if facts:
            self.announce(writer, facts[-1].token, facts)

    def settled_upto(self, bounds: Mapping[str, Token], last: Token) -> None:
        """All facts within ``bounds`` are announced: advance the linear position."""
        self._linear.settled_upto(min([*bounds.values(), last, self._own_floor()]))
        self.advance_linear()

    # -- both ---------------------------------------------------------------------

    def announce(self, writer: str, new: Token, facts: Sequence[Fact]) -> None:
        """Advance a writer's position; it never goes back (R2)."""
        prev = self.positions.get(writer, 0)
        if new <= prev:
            return
        self.positions[writer] = new
        if facts and facts[0].token <= prev:  # read again, after a restart or a failover
            facts = [fact for fact in facts if fact.token > prev]
        self._listener.writer_advanced(self.stream, writer, prev, new, facts)
        self._hold(facts)

    def positions_past_idle(self) -> dict[str, Token]:
        """All positions, with those of idle writers raised to the linear position.

        Real peers go by the writer that is furthest behind, so an idle writer would hold them
        back.
        """
        raised = {writer: max(at, self.linear) for writer, at in self.positions_to_announce()}
        return {**self.positions, **raised}

    def skip_idle(self, recorded: Mapping[str, Token]) -> None:
        """Advance idle writers.

        :param recorded: the result of :meth:`positions_past_idle`, which is on record by now, so
            that no later process announces less (R2)
        """
        for writer, position in recorded.items():
            self.announce(writer, position, ())

    def advance_linear(self) -> None:
        """Announce the facts that the linear position has passed."""
        prev, new = self._announced, self._linear.position
        if new <= prev:
            return
        self._announced = new
        passed = self._held.take(new)
        spilled = prev < self._spilled_upto
        self._listener.linear_advanced(self.stream, prev, new, None if spilled else passed)

    def _hold(self, facts: Sequence[Fact]) -> None:
        if facts and facts[0].token <= self._announced:
            facts = [fact for fact in facts if fact.token > self._announced]
        self._held.add(facts)
        if self._held.rows > self._held_rows:
            self._spilled_upto = max(self._spilled_upto, self._held.last)
            self._held.clear()

    def _own_floor(self) -> Token:
        return self._ledger.floor if self._ledger is not None else MAX_TOKEN
