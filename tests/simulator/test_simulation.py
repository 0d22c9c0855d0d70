"""Many deployments that go wrong in as many ways: no rule may break in any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from unittest import TestCase

from simulator.product import Product
from simulator.simulation import simulate

#: How many are played, and how many by one test: several processes can share them.
#: `tox -e simulate` plays more.
SEEDS, SEEDS_OF_A_PART = 2_000, 100

#: The end of the story of a seed that fails, in lines.
SHOWN = 40

#: How much of everything a run must have seen on average; or nothing would be tried.
AT_LEAST = {
    "facts": 20,
    "changes": 20,
    "reads": 80,
    "trimmed": 2,
    "resets": 0.05,
    "messages": 40,
    "cut off": 0.01,
    "drained": 0.3,
}


class SimulationSeeds(TestCase):
    """In parts, made below."""

    def run_seeds(self, first: int, last: int) -> None:
        totals: Counter[str] = Counter()
        for seed in range(first, last + 1):
            result = simulate(seed, Product())
            totals.update(result.counts)
            if result.violations:
                story = "\n".join(list(result.transcript.lines())[-SHOWN:])
                self.fail(
                    f"{result.violations[0]}\n{story}\nreplay: python -m simulator --seed {seed}"
                )
        for name, least in AT_LEAST.items():
            self.assertGreater(totals[name], least * (last - first), name)


def _seeds_test(first: int, last: int) -> Callable[[SimulationSeeds], None]:
    return lambda case: case.run_seeds(first, last)


for _first in range(1, SEEDS, SEEDS_OF_A_PART):
    _last = _first + SEEDS_OF_A_PART - 1
    setattr(SimulationSeeds, f"test_seeds_{_first}_to_{_last}", _seeds_test(_first, _last))
