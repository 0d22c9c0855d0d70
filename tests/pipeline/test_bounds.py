"""The safe bounds of streams, against random histories of their writers (R5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.source.database.bounds import StreamBounds
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import ForeignBounds, SafeBound
from synrepl.storage.store import Observation, ReservationHolder, WriterState

NAMES = ("a", "b", "c")
SETTLE_S = 5.0

MACHINE = settings(max_examples=300, stateful_step_count=40, deadline=None)


@dataclass
class Writer:
    """The state of a writer in the database.

    :ivar held: a process holds the writer's name, or held it when it died
    :ivar alive: that process is running
    :ivar transactions: the tokens of each open transaction, by number
    :ivar reserved: the tokens of each reservation of its process, by number
    :ivar void: tokens that a dead process had reserved and that are not released yet
    """

    position: int = 0
    held: bool = False
    alive: bool = False
    transactions: dict[int, list[int]] = field(default_factory=dict)
    reserved: dict[int, list[int]] = field(default_factory=dict)
    void: list[int] = field(default_factory=list)

    @property
    def unsettled(self) -> list[int]:
        groups = [*self.transactions.values(), *self.reserved.values(), self.void]
        return [token for group in groups for token in group]


class OwnBoundsMachine(RuleBasedStateMachine):
    """Writers in synrepl's own tables, and a reader that observes the sequence, then the locks."""

    def __init__(self) -> None:
        super().__init__()
        self.last = 0
        self.recorded = 0
        self.writers: dict[str, Writer] = {}
        self.numbers = count()
        self.bounds = StreamBounds()
        self.bound = PositionVector()
        self.sequence: int | None = None

    def take(self) -> int:
        self.last += 1
        return self.last

    @rule(name=st.sampled_from(NAMES))
    def register(self, name: str) -> None:
        self.writers.setdefault(name, Writer())

    @rule(name=st.sampled_from(NAMES))
    def open(self, name: str) -> None:
        """Start the writer's process, which voids what the previous process left behind."""
        writer = self.writers.get(name)
        if writer and not writer.alive and not writer.transactions:
            writer.held = writer.alive = True
            writer.void.clear()

    @rule(name=st.sampled_from(NAMES), how_many=st.integers(0, 3))
    def begin(self, name: str, how_many: int) -> None:
        writer = self.writers.get(name)
        if writer and not (writer.held and not writer.alive):
            writer.transactions[next(self.numbers)] = [self.take() for _ in range(how_many)]

    @rule(name=st.sampled_from(NAMES))
    def take_one_more(self, name: str) -> None:
        if name in self.writers and self.writers[name].transactions:
            next(iter(self.writers[name].transactions.values())).append(self.take())

    @rule(name=st.sampled_from(NAMES), how_many=st.integers(1, 3))
    def reserve(self, name: str, how_many: int) -> None:
        writer = self.writers.get(name)
        if writer and writer.alive:
            writer.reserved[next(self.numbers)] = [self.take() for _ in range(how_many)]

    @rule(name=st.sampled_from(NAMES), reserved=st.booleans(), oldest=st.booleans())
    def settle(self, name: str, reserved: bool, oldest: bool) -> None:
        writer = self.writers.get(name, Writer())
        groups = writer.reserved if reserved else writer.transactions
        if groups:
            groups.pop(min(groups) if oldest else max(groups))

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        """End the session of the writer's process; its transactions on other connections continue."""
        writer = self.writers.get(name)
        if writer and writer.alive:
            writer.alive = False
            writer.void += [token for group in writer.reserved.values() for token in group]
            writer.reserved.clear()

    @rule(name=st.sampled_from(NAMES))
    def fence(self, name: str) -> None:
        writer = self.writers.get(name)
        if writer and writer.held and not writer.alive and not writer.transactions:
            writer.held = False
            writer.void.clear()

    @rule(name=st.sampled_from(NAMES))
    def record(self, name: str) -> None:
        if name in self.writers:
            writer = self.writers[name]
            writer.position = min([self.last + 1, *writer.unsettled]) - 1

    @rule()
    def record_linear(self) -> None:
        unsettled = [token for writer in self.writers.values() for token in writer.unsettled]
        self.recorded = min([self.last + 1, *unsettled]) - 1

    @rule()
    def look_at_the_sequence(self) -> None:
        self.sequence = self.last

    @precondition(lambda self: self.sequence is not None)
    @rule(locks=st.sampled_from([True, True, True, False]))
    def look_at_the_locks(self, locks: bool) -> None:
        assert self.sequence is not None
        safe = self.observe(self.sequence, locks)
        self.sequence = None
        if not locks:
            assert safe.is_complete

    def observe(self, sequence: int, locks: bool) -> SafeBound:
        safe = self.bounds.update(
            Observation(
                sequence,
                self.recorded,
                {
                    name: WriterState(
                        0,
                        writer.position,
                        is_held=writer.held,
                        is_alive=writer.alive,
                        holders=tuple(
                            ReservationHolder((number,), "")
                            for number in (*writer.transactions, *writer.reserved)
                        ),
                    )
                    for name, writer in self.writers.items()
                },
            ),
            locks,
        )
        assert safe.bound.covers(self.bound)
        assert all(safe.bound[name] >= self.bound[name] for name in NAMES)
        self.bound = safe.bound
        for name in NAMES:
            unsettled = self.writers.get(name, Writer()).unsettled
            assert self.bound[name] < min(unsettled, default=self.last + 1), (name, unsettled)
        return safe

    def teardown(self) -> None:
        for writer in self.writers.values():
            writer.transactions.clear()
            writer.reserved.clear()
            writer.void.clear()
            writer.held = writer.alive
        if self.writers:
            safe = self.observe(self.last, True)
            assert safe.is_complete
            assert safe.bound.linear == self.last


@dataclass
class TokenUse:
    """A token of a Synapse's writer, possibly before its transaction has begun.

    :ivar taken: the time of the allocation
    :ivar transaction: the number of the transaction; None before it has begun
    """

    writer: str
    taken: float
    transaction: int | None = None


class SynapseBoundsMachine(RuleBasedStateMachine):
    """Processes of a Synapse, which begin the transaction of each token within the time limit."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.last = 0
        self.recorded: dict[str, int] = {}
        self.uses: dict[int, TokenUse] = {}
        self.others: set[int] = set()
        self.numbers = count()
        self.bounds = ForeignBounds(SETTLE_S)
        self.bound = PositionVector()
        self.sequence: int | None = None

    @rule(name=st.sampled_from(NAMES))
    def take(self, name: str) -> None:
        self.last += 1
        self.uses[self.last] = TokenUse(name, self.now)

    @rule(oldest=st.booleans())
    def begin(self, oldest: bool) -> None:
        idle = [token for token, use in self.uses.items() if use.transaction is None]
        if idle:
            self.uses[min(idle) if oldest else max(idle)].transaction = next(self.numbers)

    @rule(oldest=st.booleans())
    def end(self, oldest: bool) -> None:
        open_ = [token for token, use in self.uses.items() if use.transaction is not None]
        if open_:
            del self.uses[min(open_) if oldest else max(open_)]

    @rule()
    def somebody_else_begins(self) -> None:
        self.others.add(next(self.numbers))

    @rule()
    def somebody_else_ends(self) -> None:
        if self.others:
            self.others.pop()

    @rule(seconds=st.sampled_from([0.5, 2.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for use in self.uses.values():
            if use.transaction is None and self.now - use.taken >= SETTLE_S:
                use.transaction = next(self.numbers)

    @precondition(lambda self: self.last)
    @rule(name=st.sampled_from(NAMES))
    def record(self, name: str) -> None:
        """Record a writer's position; all three have one from the start, as in a running Synapse."""
        for each in NAMES:
            self.recorded.setdefault(each, 0)
        unsettled = [token for token, use in self.uses.items() if use.writer == name]
        self.recorded[name] = min([self.last + 1, *unsettled]) - 1

    @rule()
    def look_at_the_sequence(self) -> None:
        self.sequence = self.last

    @precondition(lambda self: self.sequence is not None)
    @rule()
    def look_at_transactions(self) -> None:
        assert self.sequence is not None
        self.observe(self.sequence)
        self.sequence = None

    def observe(self, sequence: int) -> SafeBound:
        open_ = [use.transaction for use in self.uses.values() if use.transaction is not None]
        safe = self.bounds.update(self.recorded, sequence, [*open_, *self.others], self.now)
        assert safe.bound.covers(self.bound)
        self.bound = safe.bound
        for token, use in self.uses.items():
            assert self.bound[use.writer] < token, (token, use, self.bound)
        return safe

    def teardown(self) -> None:
        self.uses.clear()
        self.others.clear()
        self.observe(self.last)
        self.now += SETTLE_S
        safe = self.observe(self.last)
        assert safe.is_complete
        assert safe.bound.linear == self.last


class SafeBoundsOverRandomHistories(SynchronousTestCase):
    """The bound never passes a token that may still commit, never decreases, and reaches the end."""

    def test_bounds_of_own_streams_are_safe_and_reach_the_end(self) -> None:
        run_state_machine_as_test(OwnBoundsMachine, settings=MACHINE)

    def test_bounds_of_synapse_streams_are_safe_and_reach_the_end(self) -> None:
        run_state_machine_as_test(SynapseBoundsMachine, settings=MACHINE)


class SynapseBoundsOfOneWriter(SynchronousTestCase):
    """Cases that the state machine does not generate."""

    def test_a_sequence_that_went_back_gives_tokens_out_again(self) -> None:
        bounds = ForeignBounds(SETTLE_S)
        bounds.update({}, 10, ["t"], 0.0)
        bounds.update({}, 4, [], 1.0)
        self.assertEqual(bounds.update({}, 10, [], 6.0).bound.linear, 4)
        self.assertEqual(bounds.update({}, 10, [], 11.0).bound.linear, 10)

    def test_a_transaction_that_begins_later_does_not_hold_the_bound(self) -> None:
        bounds = ForeignBounds(SETTLE_S)
        bounds.update({}, 10, [], 0.0)
        self.assertEqual(bounds.update({}, 10, ["late"], 5.0).bound.linear, 0)
        self.assertEqual(bounds.update({}, 10, ["later"], 5.1).bound.linear, 10)

    def test_a_writer_that_is_no_longer_on_record_keeps_its_bound(self) -> None:
        bounds = ForeignBounds(SETTLE_S)
        bounds.update({"a": 10, "b": 3}, 10, ["t"], 0.0)
        self.assertEqual(bounds.update({"b": 3}, 10, ["t"], 1.0).bound["a"], 10)
