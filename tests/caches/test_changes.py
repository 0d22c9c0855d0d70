"""Change indexes: against a naive model that forgets nothing."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from synrepl.caches.changes import BadEntity, ChangeIndex, HasChanged, TooFewEntries

YES, NO, MAYBE = HasChanged.YES, HasChanged.NO, HasChanged.MAYBE

ENTITIES = st.sampled_from(["!a", "!b", "!c", "!d", "!e", 1, 2.5, None, "", "1"])
TOKENS = st.integers(0, 20)

MACHINE = settings(max_examples=60, stateful_step_count=30, deadline=None)


class ChangeIndexMachine(RuleBasedStateMachine):
    """Every answer, for every entity and every token, after every step."""

    @initialize(entries=st.integers(1, 6))
    def start(self, entries: int) -> None:
        self.index = ChangeIndex("rooms", entries)
        self.truth: dict[Any, int] = {}
        self.begun = False
        self.horizon = 0

    def above(self, token: int) -> dict[Any, int]:
        return {entity: last for entity, last in self.truth.items() if last > token}

    @rule(entity=ENTITIES, token=TOKENS)
    def changed(self, entity: Any, token: int) -> None:
        self.index.changed(entity, token)
        self.truth[entity] = max(token, self.truth.get(entity, 0))
        while len(kept := self.above(self.horizon)) > self.index.entries:
            self.horizon = min(kept.values())

    @rule(token=TOKENS)
    def begin(self, token: int) -> None:
        self.index.begin(token)
        self.horizon = max(self.horizon, token)
        self.begun = True

    @rule(token=TOKENS)
    def all_changed(self, token: int) -> None:
        self.index.all_changed(token)
        self.horizon = max(self.horizon, token)

    @invariant()
    def bounded_and_as_far_back_as_it_can_be(self) -> None:
        assert self.index.horizon == (self.horizon if self.begun else None)
        assert len(self.index) == len(self.above(self.horizon)) <= self.index.entries

    @invariant()
    def sound_and_exact(self) -> None:
        kept = self.above(self.horizon)
        for since in range(22):
            exact = self.begun and since >= self.horizon
            above = self.above(since)
            for entity in (*self.truth, "!never"):
                unknown = NO if exact else MAYBE
                known = self.begun and entity in above and (exact or entity in kept)
                assert self.index.has_changed(entity, since) is (YES if known else unknown)
            asked = ["!never", *self.truth]
            among = self.index.changed_among(asked, since)
            assert among == [each for each in asked if each in above or not exact]
            changed = self.index.all_since(since)
            anything = self.index.any_since(since)
            if exact:
                assert changed is not None
                assert set(changed) == set(above)
                assert [above[each] for each in changed] == sorted(above.values())
                assert anything is (YES if above else NO)
            else:
                assert changed is None
                assert anything is (YES if self.begun and kept else MAYBE)


class ChangeIndexProperties(TestCase):
    def test_behaves_like_the_model(self) -> None:
        run_state_machine_as_test(ChangeIndexMachine, settings=MACHINE)


class ChangeIndexExamples(TestCase):
    def index(self, entries: int = 3) -> ChangeIndex:
        index = ChangeIndex("rooms", entries)
        index.begin(10)
        return index

    def test_nothing_is_known_before_the_beginning(self) -> None:
        index = ChangeIndex("rooms", 3)
        index.changed("!a", 5)
        self.assertEqual([index.has_changed(e, 1) for e in ("!a", "!b")], [MAYBE, MAYBE])
        self.assertEqual((index.any_since(9), index.all_since(9)), (MAYBE, None))
        self.assertIsNone(index.horizon)
        index.begin(4)  # a change that came before counts
        self.assertEqual((index.has_changed("!a", 4), index.has_changed("!a", 5)), (YES, NO))

    def test_at_the_horizon_and_below(self) -> None:
        index = self.index()
        index.changed("!a", 11)
        self.assertEqual([index.has_changed("!a", t) for t in (9, 10, 11)], [YES, YES, NO])
        self.assertEqual([index.has_changed("!b", t) for t in (9, 10)], [MAYBE, NO])
        self.assertEqual(index.changed_among(["!c", "!b", "!a"], 9), ["!c", "!b", "!a"])
        self.assertEqual(index.changed_among(["!c", "!b", "!a"], 10), ["!a"])

    def test_entities_of_one_token_are_dropped_together(self) -> None:
        index = self.index()
        for entity, token in (("!a", 12), ("!b", 12), ("!c", 13), ("!d", 14)):
            index.changed(entity, token)
        self.assertEqual((len(index), index.horizon), (2, 12))
        self.assertEqual(index.has_changed("!b", 11), MAYBE)
        self.assertEqual(index.all_since(12), ["!c", "!d"])

    def test_a_late_token_does_not_move_a_change_back(self) -> None:
        index = self.index()
        index.changed("!a", 20)
        index.changed("!a", 15)  # of another writer
        index.changed("!b", 17)
        self.assertEqual(index.all_since(10), ["!b", "!a"])

    def test_drops_a_token_with_too_many_entities(self) -> None:
        index = self.index(entries=2)
        for entity in "abc":
            index.changed(entity, 11)
        self.assertEqual((len(index), index.horizon), (0, 11))

    def test_all_changed_raises_the_horizon(self) -> None:
        index = self.index()
        index.changed("!a", 12)
        index.all_changed(13)
        self.assertEqual((index.has_changed("!a", 12), index.has_changed("!b", 12)), (MAYBE, MAYBE))
        self.assertEqual((index.any_since(13), len(index)), (NO, 0))

    def test_refuses_bad_entities(self) -> None:
        index = self.index()
        for bad in ((1,), b"x", float("nan"), object()):
            with self.subTest(bad):
                self.assertRaises(BadEntity, index.changed, bad, 11)
                self.assertRaises(BadEntity, index.has_changed, bad, 11)
        self.assertRaises(BadEntity, index.changed, [], 11)
        self.assertRaises(TooFewEntries, ChangeIndex, "rooms", 0)
