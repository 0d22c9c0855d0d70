"""The parts of a job are packed for its tasks."""

from __future__ import annotations

import random
from unittest import TestCase

from synrepl.pipeline.lake.spark_tasks import PackedParts


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
