"""Defects made on purpose, which the simulator has to find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, islice
from random import Random
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from synrepl.daemon.simulation import Product
from synrepl.testing.simulator.plan import Plan
from synrepl.testing.simulator.world import simulate

#: The most seeds that a defect may need to show.
SEEDS = 300


class MutantTestCase(TestCase):
    """Base of tests of one defect each."""

    def may_show(self, plan: Plan) -> bool:
        """Whether it is worth while to play a plan."""
        return True

    def seeds(self) -> Iterator[int]:
        """Seeds of such plans."""
        seeds = (seed for seed in count(1) if self.may_show(Plan.draw(Random(seed))))
        return islice(seeds, SEEDS)

    def assert_caught(self, rules: str, *mutations: tuple[type[Any] | Any, str, Any]) -> None:
        """At least one seed breaks one of these rules with the defects, and none without.

        :param mutations: what is to be replaced: owner, name, defect
        """
        with ExitStack() as defects:
            for owner, name, defect in mutations:
                defects.enter_context(patch.object(owner, name, defect))
            for seed in self.seeds():
                violations = simulate(seed, Product()).violations
                if violations:
                    break
            else:
                self.fail(f"{mutations[0][1]}: not caught within {SEEDS} seeds")
        print(f"{self.id()}: caught by seed {seed}: {violations[0][:100]}")
        self.assertIn(violations[0].partition(":")[0], rules.split(), violations[0])
        self.assertEqual(simulate(seed, Product()).violations, [])
