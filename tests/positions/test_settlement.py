"""The linear position and observations, against a sequence with several writers."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from synrepl.positions.linear import LinearTracker
from synrepl.positions.settlement import MAX_PENDING, SettlementTracker

MACHINE = settings(max_examples=80, stateful_step_count=40, deadline=None)


class LinearTrackerTests(TestCase):
    def test_it_waits_at_a_hole_and_jumps_when_it_fills(self) -> None:
        tracker = LinearTracker(1)
        for token in (3, 4, 6, 4):
            tracker.settled(token)
        self.assertEqual((tracker.position, tracker.has_hole), (1, True))
        tracker.settled(2)
        self.assertEqual((tracker.position, tracker.has_hole), (4, True))
        tracker.settled(5)
        self.assertEqual((tracker.position, tracker.has_hole), (6, False))

    def test_known_tokens_change_nothing(self) -> None:
        tracker = LinearTracker(5)
        tracker.settled(5)
        tracker.settled(2)
        tracker.settled_upto(4)
        self.assertEqual((tracker.position, tracker.has_hole), (5, False))

    def test_an_observation_closes_a_hole_that_never_fills(self) -> None:
        tracker = LinearTracker(0)
        for token in (2, 5, 7):
            tracker.settled(token)
        tracker.settled_upto(4)
        self.assertEqual((tracker.position, tracker.has_hole), (5, True))

    def test_what_it_forgets_only_waits_for_the_next_observation(self) -> None:
        tracker = LinearTracker(0, max_waiting=2)
        for token in (2, 3, 4, 5):
            tracker.settled(token)
        tracker.settled(1)
        self.assertEqual((tracker.position, tracker.has_hole), (3, True))
        tracker.settled_upto(5)
        self.assertEqual((tracker.position, tracker.has_hole), (5, False))


class SettlementTrackerTests(TestCase):
    def test_without_holders_everything_is_settled(self) -> None:
        self.assertEqual(SettlementTracker().observe(9, []), 9)

    def test_an_earlier_observation_counts_once_its_holders_are_gone(self) -> None:
        settling = SettlementTracker()
        self.assertEqual(settling.observe(5, ["a"]), 0)
        self.assertEqual(settling.observe(7, ["a", "b"]), 0)
        self.assertEqual(settling.observe(9, ["b", "c"]), 5)
        self.assertEqual(settling.observe(9, ["c"]), 7)
        self.assertEqual(settling.observe(9, []), 9)

    def test_a_new_holder_does_not_hold_an_older_observation_of_the_same_token(self) -> None:
        settling = SettlementTracker()
        settling.observe(5, ["a"])
        for newcomer in range(MAX_PENDING):
            settling.observe(5, ["a", newcomer])
        self.assertEqual(settling.pending, 1)
        self.assertEqual(settling.observe(5, ["b"]), 5)

    def test_the_bound_never_goes_back(self) -> None:
        settling = SettlementTracker(3)
        settling.observe(9, [])
        self.assertEqual(settling.observe(4, []), 9)
        self.assertEqual(settling.bound, 9)

    def test_observations_above_a_sequence_that_was_set_back_are_forgotten(self) -> None:
        settling = SettlementTracker()
        settling.observe(50, ["a"])
        settling.observe(40, ["b"])
        self.assertEqual(settling.observe(41, ["c"]), 40)

    def test_memory_is_bounded_and_the_oldest_and_newest_observations_are_kept(self) -> None:
        settling = SettlementTracker()
        for last in range(1, 10 * MAX_PENDING):
            settling.observe(last, range(last))  # holder n leaves never, more come
        self.assertLessEqual(settling.pending, MAX_PENDING)
        self.assertEqual(settling.observe(1000, range(1, 1000)), 1)
        self.assertEqual(settling.observe(1000, [999]), 10 * MAX_PENDING - 1)


class SequenceMachine(RuleBasedStateMachine):
    """Writers that lock, take tokens and let go, seen by one tracker and one observer.

    An observation is two steps, so that anything may happen between them.
    """

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.settling = SettlementTracker()
        self.tracker = LinearTracker(0, max_waiting=8)
        self.last_given = 0
        self.held: dict[int, list[int]] = {}
        self.next_holder = 0
        self.read: int | None = None

    @rule(target=holders)
    def lock(self) -> int:
        self.next_holder += 1
        self.held[self.next_holder] = []
        return self.next_holder

    @rule(holder=holders)
    def take(self, holder: int) -> None:
        self.last_given += 1
        self.held[holder].append(self.last_given)

    @rule(holder=consumes(holders), notified=st.booleans())
    def let_go(self, holder: int, notified: bool) -> None:
        tokens = self.held.pop(holder)
        if notified:
            for token in tokens:
                self.tracker.settled(token)

    @rule()
    def read_sequence(self) -> None:
        self.read = self.last_given

    @precondition(lambda self: self.read is not None)
    @rule()
    def read_locks(self) -> None:
        assert self.read is not None
        self.tracker.settled_upto(self.settling.observe(self.read, self.held.keys()))
        self.read = None

    @invariant()
    def nothing_passes_an_unsettled_token(self) -> None:
        oldest = min((token for held in self.held.values() for token in held), default=None)
        if oldest is not None:
            assert self.settling.bound < oldest
            assert self.tracker.position < oldest
        assert max(self.settling.bound, self.tracker.position) <= self.last_given

    def teardown(self) -> None:
        """Liveness: one writer stays busy for ever, yet the others' tokens are settled."""
        end = self.last_given
        self.held = {self.next_holder + 1: []}
        self.settling.observe(end, self.held.keys())
        self.held = {self.next_holder + 2: []}
        self.tracker.settled_upto(self.settling.observe(end + 1, self.held.keys()))
        assert self.settling.bound == end
        assert self.tracker.position == end
        assert not self.tracker.has_hole


class SequenceProperties(TestCase):
    def test_neither_passes_an_unsettled_token_and_both_get_to_the_end(self) -> None:
        run_state_machine_as_test(SequenceMachine, settings=MACHINE)
