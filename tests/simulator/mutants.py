"""Defects made on purpose, which the simulator has to find."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from simulator.product import Product
from simulator.scenario import SimulationScenario
from simulator.simulation import simulate

#: The most seeds that a defect may need to show.
SEEDS = 300

#: Where :data:`KNOWN` is kept; `python -m tests.simulator` writes it.
KNOWN_FILE = Path(__file__).with_name("catching_seeds.json")

#: The seed that showed the defect of a test, when all were last looked for. It is played first, so
#: that a test need not search each time. When it shows the defect no longer, the test searches.
KNOWN: dict[str, int] = json.loads(KNOWN_FILE.read_text())

#: What the tests of this process have found.
CAUGHT: dict[str, int] = {}


def known_first(test: str, seeds: Iterable[int]) -> Iterator[int]:
    """The seed that is known to catch the defect of a test, and then the others."""
    known = KNOWN.get(test)
    if known is not None:
        yield known
    yield from (seed for seed in seeds if seed != known)


class MutantTestCase(TestCase):
    """Base of tests of one defect each."""

    def may_show(self, scenario: SimulationScenario) -> bool:
        """Whether it is worth while to play a plan."""
        return True

    def seeds(self) -> Iterator[int]:
        """Seeds of such plans."""
        seeds = (seed for seed in count(1) if self.may_show(SimulationScenario.draw(Random(seed))))
        return known_first(self.id(), islice(seeds, SEEDS))

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
        CAUGHT[self.id()] = seed
        print(f"{self.id()}: caught by seed {seed}: {violations[0][:100]}")
        self.assertIn(violations[0].partition(":")[0], rules.split(), violations[0])
        self.assertEqual(simulate(seed, Product()).violations, [])
