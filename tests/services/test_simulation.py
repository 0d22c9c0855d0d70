"""Two thousand deployments that go wrong in two thousand ways: no rule may break in any."""

from __future__ import annotations

from unittest import TestCase

from synrepl.daemon.simulation import Product
from synrepl.testing.simulator.world import simulate

#: The end of the story of a seed that fails, in lines.
SHOWN = 40


class Seeds(TestCase):
    """In parts, so that several processes can share them."""

    def run_seeds(self, first: int, last: int) -> None:
        facts = 0
        for seed in range(first, last + 1):
            result = simulate(seed, Product())
            facts += result.counts["facts"]
            if result.violations:
                story = "\n".join(list(result.transcript.lines())[-SHOWN:])
                self.fail(
                    f"{result.violations[0]}\n{story}\n"
                    f"replay: python -m synrepl.testing.simulator --seed {seed}"
                )
        self.assertGreater(facts, 20 * (last - first))  # something was going on

    def test_seeds_1_to_200(self) -> None:
        self.run_seeds(1, 200)

    def test_seeds_201_to_400(self) -> None:
        self.run_seeds(201, 400)

    def test_seeds_401_to_600(self) -> None:
        self.run_seeds(401, 600)

    def test_seeds_601_to_800(self) -> None:
        self.run_seeds(601, 800)

    def test_seeds_801_to_1000(self) -> None:
        self.run_seeds(801, 1000)

    def test_seeds_1001_to_1200(self) -> None:
        self.run_seeds(1001, 1200)

    def test_seeds_1201_to_1400(self) -> None:
        self.run_seeds(1201, 1400)

    def test_seeds_1401_to_1600(self) -> None:
        self.run_seeds(1401, 1600)

    def test_seeds_1601_to_1800(self) -> None:
        self.run_seeds(1601, 1800)

    def test_seeds_1801_to_2000(self) -> None:
        self.run_seeds(1801, 2000)
