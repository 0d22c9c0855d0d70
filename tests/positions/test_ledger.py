"""The ledger against the seed's example and against a naive model (invariant R1)."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from synrepl.core.tokens import MAX_TOKEN
from synrepl.positions.ledger import Ledger, NotReserved, Request, RequestClosed, SequenceBehind

MACHINE = settings(max_examples=80, stateful_step_count=40, deadline=None)


def reserve(ledger: Ledger, *tokens: int) -> None:
    ledger.reserved(ledger.request(), tokens)


class LedgerTests(TestCase):
    def test_the_example_of_the_seed(self) -> None:
        ledger = Ledger(1)
        reserve(ledger, 2)
        reserve(ledger, 3)
        self.assertEqual(ledger.settle([3]), 1)
        self.assertEqual(ledger.settle([2]), 3)
        for token in (4, 5, 6):
            reserve(ledger, token)
        self.assertEqual(ledger.settle([5]), 3)
        self.assertEqual(ledger.settle([4]), 5)
        self.assertEqual(ledger.settle([6]), 6)

    def test_a_token_that_is_still_to_come_holds_the_position(self) -> None:
        ledger = Ledger(1)
        slow = ledger.request()
        reserve(ledger, 3)
        self.assertEqual(ledger.settle([3]), 1)
        ledger.reserved(slow, [2])
        self.assertEqual((ledger.position, ledger.oldest), (1, 2))
        self.assertEqual(ledger.settle([2]), 3)

    def test_an_open_request_does_not_hold_what_was_seen_before_it(self) -> None:
        ledger = Ledger(1)
        reserve(ledger, 2)
        request = ledger.request()
        self.assertEqual(ledger.settle([2]), 2)
        self.assertEqual(ledger.open_requests, 1)
        ledger.abandon(request)
        self.assertEqual((ledger.position, ledger.open_requests), (2, 0))

    def test_an_abandoned_request_releases_the_position(self) -> None:
        ledger = Ledger(1)
        request = ledger.request()
        reserve(ledger, 7)
        ledger.settle([7])
        self.assertEqual(ledger.position, 1)
        ledger.abandon(request)
        self.assertEqual(ledger.position, 7)

    def test_other_writers_tokens_raise_what_is_seen_not_the_position(self) -> None:
        ledger = Ledger(1)
        ledger.saw(9)
        ledger.saw(4)
        self.assertEqual((ledger.seen, ledger.position), (9, 1))
        reserve(ledger, 10)
        self.assertEqual(ledger.settle([10]), 10)

    def test_an_idle_writer_advances_to_the_settled_bound(self) -> None:
        ledger = Ledger(2)
        self.assertTrue(ledger.skip(7))
        self.assertEqual((ledger.position, ledger.seen), (7, 7))
        self.assertFalse(ledger.skip(6))
        ledger.reserved(ledger.request(), [9, 11])
        ledger.settle([11])
        self.assertTrue(ledger.skip(10))
        self.assertEqual(ledger.position, 8)
        ledger.settle([9])
        self.assertEqual(ledger.position, 11)

    def test_a_sequence_that_is_behind_is_refused_and_changes_nothing(self) -> None:
        ledger = Ledger(5)
        reserve(ledger, 6)
        ledger.saw(9)
        for tokens in ([5], [6], [8], [10, 9], [10, 10]):
            request = ledger.request()
            with self.assertRaises(SequenceBehind):
                ledger.reserved(request, tokens)
            self.assertEqual((ledger.outstanding, ledger.open_requests, ledger.seen), (1, 1, 9))
            ledger.reserved(request, [])
        self.assertEqual(ledger.settle([6]), 6)

    def test_a_token_known_from_a_later_request_is_refused(self) -> None:
        ledger = Ledger(0)
        first, second = ledger.request(), ledger.request()
        ledger.reserved(second, [1, 2])
        ledger.settle([1])
        for token in (1, 2):
            with self.assertRaises(SequenceBehind):
                ledger.reserved(first, [token])

    def test_settling_what_is_not_outstanding_is_refused_and_changes_nothing(self) -> None:
        ledger = Ledger(0)
        reserve(ledger, 1, 2, 3)
        ledger.settle([2])
        for tokens in ([1, 2], [1, 4], [1, 1], [0]):
            with self.assertRaises(NotReserved):
                ledger.settle(tokens)
            self.assertEqual((ledger.position, ledger.outstanding), (0, 2))

    def test_a_request_is_resolved_once(self) -> None:
        ledger = Ledger(0)
        request = ledger.request()
        ledger.reserved(request, [1])
        with self.assertRaises(RequestClosed):
            ledger.reserved(request, [2])
        with self.assertRaises(RequestClosed):
            ledger.abandon(request)


class LedgerMachine(RuleBasedStateMachine):
    """Several concurrent requests, resolved in any order, beside other writers."""

    requests = Bundle("requests")
    answers = Bundle("answers")
    tokens = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(0)
        self.last_given = 0
        self.floors: dict[Request, int] = {}
        self.unsettled: set[int] = set()
        self.settled: set[int] = set()
        self.skipped = 0

    @rule(target=requests)
    def ask(self) -> Request:
        request = self.ledger.request()
        self.floors[request] = self.ledger.seen
        return request

    @rule(target=answers, request=consumes(requests), count=st.integers(0, 3))
    def sequence_answers(self, request: Request, count: int) -> tuple[Request, list[int]]:
        given = [self.last_given + 1 + n for n in range(count)]
        self.last_given += count
        return request, given

    @rule(heard=st.booleans())
    def another_writer_takes_one(self, heard: bool) -> None:
        self.last_given += 1
        if heard:
            self.ledger.saw(self.last_given)

    @rule(target=tokens, answer=consumes(answers))
    def answer_arrives(self, answer: tuple[Request, list[int]]) -> list[int]:
        request, given = answer
        self.ledger.reserved(request, given)
        del self.floors[request]
        self.unsettled |= set(given)
        return given

    @rule(request=consumes(requests))
    def give_up(self, request: Request) -> None:
        self.ledger.abandon(request)
        del self.floors[request]

    @rule(given=consumes(tokens), together=st.booleans())
    def settle(self, given: list[int], together: bool) -> None:
        for tokens in [given] if together else [[token] for token in reversed(given)]:
            self.ledger.settle(tokens)
            self.unsettled -= set(tokens)
            self.settled |= set(tokens)
            self.position_is_the_models()

    @rule(back=st.integers(0, 3))
    def skip(self, back: int) -> None:
        before, token = self.ledger.position, max(0, self.last_given - back)
        moved = self.ledger.skip(token)
        barrier = self.barrier()
        self.skipped = max(self.skipped, token if barrier is None else min(token, barrier))
        self.position_is_the_models()
        assert moved == (self.ledger.position > before)

    def barrier(self) -> int | None:
        """The tokens that hold the position back."""
        open_ = [*self.floors.values(), *(token - 1 for token in self.unsettled)]
        return min(open_, default=None)

    @invariant()
    def position_is_the_models(self) -> None:
        barrier = self.barrier()
        reached = [token for token in self.settled if barrier is None or token <= barrier]
        assert self.ledger.position == max([*reached, self.skipped])
        assert self.ledger.floor == (MAX_TOKEN if barrier is None else barrier)

    @invariant()
    def outstanding_is_the_models(self) -> None:
        assert self.ledger.outstanding == len(self.unsettled)
        assert self.ledger.oldest == min(self.unsettled, default=None)


class LedgerProperties(TestCase):
    def test_position_under_any_interleaving(self) -> None:
        run_state_machine_as_test(LedgerMachine, settings=MACHINE)
