"""State groups as a forest, and how few rows they are planned in."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from unittest import TestCase

from synrepl.pipeline.rooms.groups.digests import state_sums, stored_sums
from synrepl.pipeline.rooms.groups.forest import (
    REMOVED,
    ROOT,
    SEVERAL,
    BrokenGroup,
    Entries,
    ForestBuilder,
    GroupForest,
)
from synrepl.pipeline.rooms.groups.plan import bases_on_path, plan_groups, reach


class Hashes(dict[tuple[int, int], int]):
    """A random summand for each entry."""

    def __init__(self) -> None:
        super().__init__()
        self._chance = Random(1)

    def __missing__(self, entry: tuple[int, int]) -> int:
        self[entry] = self._chance.getrandbits(128)
        return self[entry]


Stored = list[tuple[int, int | None, Entries]]


def linear(groups: int, keys: int, whole_every: int = 100) -> Stored:
    """Groups that each change one entry, stored whole now and then."""
    chance = Random(groups)
    state: Entries = {}
    found: Stored = []
    for number in range(groups):
        key = number if number < keys else chance.randrange(keys)
        state[key] = number
        is_whole = number % whole_every == 0
        found.append(
            (number, None if is_whole else number - 1, dict(state) if is_whole else {key: number})
        )
    return found


def branching(groups: int, seed: int) -> Stored:
    """Groups that change any earlier one; some stored whole, some of these without an entry."""
    chance = Random(seed)
    states: list[Entries] = [{}]
    found: Stored = [(0, None, {})]
    for number in range(1, groups):
        base = chance.randrange(max(0, number - 6), number)
        change = {chance.randrange(40): 1_000 * number + nth for nth in range(chance.randrange(4))}
        state = {**states[base], **change}
        if chance.random() < 0.2:
            if state and chance.random() < 0.3:
                del state[chance.choice(sorted(state))]
            found.append((number, None, dict(state)))
        else:
            found.append((number, base, change))
        states.append(state)
    return found


def forest_of(stored: Stored, hashes: Hashes) -> GroupForest:
    builder = ForestBuilder(hashes, kept_entries=500)
    for number, prev, entries in stored:
        builder.add(number, prev, entries)
    return builder.finish()


def whole_states(stored: Stored) -> dict[int, Entries]:
    states: dict[int, Entries] = {}
    for number, prev, entries in stored:
        states[number] = {**(states[prev] if prev is not None else {}), **entries}
    return states


def planned_states(
    forest: GroupForest, bases: list[int], changes: list[Entries]
) -> dict[int, Entries]:
    """The states that a plan describes, put together without anything that made it."""
    found = {}
    for place, number in enumerate(forest.numbers):
        chain = [place]
        while bases[chain[-1]] != ROOT:
            chain.append(bases[chain[-1]])
        state: Entries = {}
        for each in reversed(chain):
            state.update(changes[each])
        found[number] = state
    return found


class Paths(TestCase):
    def test_every_group_is_reached_in_the_steps_allowed(self) -> None:
        for hops, levels in ((1, 1), (3, 2), (5, 3), (10, 2), (4, 4)):
            length = reach(hops, levels)
            bases, steps = bases_on_path(length, hops, levels)
            self.assertEqual(bases.count(ROOT), 1)
            self.assertEqual(max(steps), hops)
            for position, base in enumerate(bases[1:], 1):
                self.assertLess(base, position)
                self.assertEqual(steps[position], steps[base] + 1)

    def test_one_more_needs_another_that_is_whole(self) -> None:
        bases, steps = bases_on_path(reach(5, 3) + 2, 5, 3)
        self.assertEqual([at for at, base in enumerate(bases) if base == ROOT], [0, reach(5, 3)])
        self.assertEqual(steps[-2:], [0, 1])

    def test_no_stretch_is_crossed_more_often_than_there_are_levels(self) -> None:
        bases, _ = bases_on_path(reach(8, 3), 8, 3)
        for gap in range(1, len(bases)):
            crossing = [at for at, base in enumerate(bases) if base < gap <= at and base != ROOT]
            self.assertLessEqual(len(crossing), 3)


class Forests(TestCase):
    def test_groups_stored_whole_get_the_group_before_them_as_base(self) -> None:
        forest = forest_of(linear(350, 60), Hashes())
        self.assertEqual(forest.bases, [ROOT, *range(349)])
        self.assertEqual(forest.rows, 350)

    def test_entries_that_groups_remove_are_not_in_their_states(self) -> None:
        for seed in range(20):
            chance = Random(seed)
            states: dict[int, Entries] = {0: {}}
            stored: Stored = [(0, None, {})]
            for number in range(1, 60):
                base = chance.randrange(max(0, number - 5), number)
                change = {chance.randrange(12): 100 * number + nth for nth in range(2)}
                gone = [key for key in states[base] if chance.random() < 0.1]
                change |= dict.fromkeys(gone, REMOVED)
                state = states[base] | change
                states[number] = {key: event for key, event in state.items() if event != REMOVED}
                stored.append((number, base, change))
            chance.shuffle(stored)  # so that some come before their base
            hashes = Hashes()
            forest = forest_of(stored, hashes)
            self.assertEqual(planned_states(forest, forest.bases, forest.changes), states, seed)
            sums = stored_sums(forest, hashes)
            self.assertEqual(
                {number: each.size for number, each in zip(forest.numbers, sums, strict=True)},
                {number: len(state) for number, state in states.items()},
            )

    def test_states_are_those_that_were_stored(self) -> None:
        for seed in range(20):
            stored = branching(120, seed)
            hashes = Hashes()
            forest = forest_of(stored, hashes)
            self.assertEqual(forest.broken, {})
            states = planned_states(forest, forest.bases, forest.changes)
            self.assertEqual(states, whole_states(stored))
            for place, state in zip(forest.numbers, stored_sums(forest, hashes), strict=True):
                expected = sum(hashes[entry] for entry in states[place].items()) % (1 << 128)
                self.assertEqual(state, (len(states[place]), expected))

    def test_a_base_that_comes_later_is_waited_for(self) -> None:
        forest = forest_of([(1, 3, {1: 1}), (2, 1, {2: 2}), (3, None, {1: 9, 3: 3})], Hashes())
        self.assertEqual(forest.numbers, [3, 1, 2])
        self.assertEqual(forest.broken, {})

    def test_broken_groups_are_named_with_the_reason(self) -> None:
        stored: Stored = [
            (1, None, {1: 1}),
            (2, 99, {2: 2}),
            (3, 2, {3: 3}),
            (4, 5, {4: 4}),
            (5, 4, {5: 5}),
            (6, 5, {6: 6}),
            (7, 1, {7: 7}),
            (8, 8, {8: 8}),
            (9, SEVERAL, {9: 9}),
            (10, 9, {10: 10}),
        ]
        forest = forest_of(stored, Hashes())
        self.assertEqual(forest.numbers, [1, 7])
        self.assertEqual(
            forest.broken,
            {
                2: BrokenGroup.NO_BASE,
                3: BrokenGroup.BROKEN_BASE,
                4: BrokenGroup.CYCLE,
                5: BrokenGroup.CYCLE,
                6: BrokenGroup.BROKEN_BASE,
                8: BrokenGroup.CYCLE,
                9: BrokenGroup.SEVERAL_BASES,
                10: BrokenGroup.BROKEN_BASE,
            },
        )

    def test_a_group_that_is_not_what_was_stored_is_refused(self) -> None:
        hashes = Hashes()
        forest = forest_of(linear(120, 20), hashes)
        forest.changes[50] = {3: 12_345}
        with self.assertRaisesRegex(ValueError, "group 100"):
            stored_sums(forest, hashes)

    def test_a_cycle_of_bases_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            state_sums([ROOT, 2, 1], [{}, {}, {}], Hashes())


class Plans(TestCase):
    def test_states_stay_the_same_within_the_hops_allowed(self) -> None:
        for seed in range(20):
            stored = branching(200, seed)
            hashes = Hashes()
            forest = forest_of(stored, hashes)
            for max_hops in (1, 3, 10):
                plan = plan_groups(forest, max_hops)
                states = planned_states(forest, plan.bases, plan.changes)
                self.assertEqual(states, whole_states(stored))
                self.assertEqual(
                    state_sums(plan.bases, plan.changes, hashes), stored_sums(forest, hashes)
                )
                for place, base in enumerate(plan.bases):
                    hops = 0 if base == ROOT else plan.hops[base] + 1
                    self.assertEqual(plan.hops[place], hops)
                self.assertLessEqual(max(plan.hops), max_hops)

    def test_a_long_room_takes_few_rows(self) -> None:
        stored = linear(3_000, 500)
        forest = forest_of(stored, Hashes())
        rows = sum(len(entries) for _, _, entries in stored)
        few = [plan_groups(forest, hops).rows for hops in (20, 40, 100)]
        self.assertLess(few[0], rows * 0.6)
        self.assertLess(few[2], rows * 0.4)
        for more, fewer in pairwise(few):
            self.assertGreater(more, fewer)

    def test_the_digest_of_another_plan_differs(self) -> None:
        hashes = Hashes()
        forest = forest_of(linear(120, 20), hashes)
        plan = plan_groups(forest, 10)
        before = stored_sums(forest, hashes)
        self.assertEqual(state_sums(plan.bases, plan.changes, hashes), before)
        plan.changes[60] = {}
        self.assertNotEqual(state_sums(plan.bases, plan.changes, hashes), before)
