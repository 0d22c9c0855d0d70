"""The parts of a job: how they are divided among tasks, and packed for them."""

from __future__ import annotations

import random
from unittest import TestCase

from synrepl.pipeline.lake.spark_tasks import PackedParts, pack_for_cores


class Packing(TestCase):
    """Each task gets its own part out of all of them."""

    def test_each_part_is_unpacked_as_it_was(self) -> None:
        dice = random.Random(3)
        for parts in (
            [b""],
            [b"only"],
            [b"", b"x", b""],
            [dice.randbytes(dice.randrange(100_000)) for _ in range(5)],
        ):
            packed = PackedParts.of(parts)
            self.assertEqual(len(packed), len(parts))
            self.assertEqual([packed[n] for n in range(len(parts))], parts)

    def test_similar_parts_are_small(self) -> None:
        statement = "SELECT " + ", ".join(f'"column_{n}"' for n in range(100))
        parts = [f"{statement} BETWEEN {n} AND {n + 500_000}".encode() for n in range(4096)]
        packed = PackedParts.of(parts)
        self.assertEqual(packed[4095], parts[4095])
        self.assertLess(sum(map(len, packed.rest)) / 4095, 100)


class Dividing(TestCase):
    """Work is divided so that all cores have some, and tasks are worth starting."""

    def sizes(self, items: list[int], most: int, cores: int) -> list[list[int]]:
        return pack_for_cores(items, lambda item: item, most, cores)

    def test_little_work_is_one_task(self) -> None:
        self.assertEqual(self.sizes([20_000] * 3, 500_000, 8), [[20_000] * 3])
        self.assertEqual(self.sizes([], 500_000, 8), [])

    def test_each_core_has_a_task(self) -> None:
        self.assertEqual(self.sizes([5_000] * 64, 500_000, 2), [[5_000] * 32] * 2)

    def test_tasks_are_not_larger_than_they_may_be(self) -> None:
        self.assertEqual(self.sizes([400_000] * 6, 500_000, 2), [[400_000]] * 6)
