"""What the fuzzer (``tests/fuzz``) begins with is right, so that it is not the harness that it finds."""

from __future__ import annotations

from itertools import islice
from random import Random
from unittest import TestCase

from synrepl.core.errors import SynreplError
from tests.fuzz.changes import changed
from tests.fuzz.targets import TARGETS

#: Seeds of each target that are tried.
SOME = 15


class Seeds(TestCase):
    """A little of what ``python -m tests.fuzz`` does, without its libraries."""

    def test_seeds_are_accepted(self) -> None:
        for name, target in TARGETS.items():
            with self.subTest(name):
                seeds = list(islice(target.seeds(), SOME))
                self.assertTrue(seeds)
                for seed in seeds:
                    target.run(seed)

    def test_changed_seeds_raise_named_errors_only(self) -> None:
        random = Random(6)
        for name, target in TARGETS.items():
            with self.subTest(name):
                for seed in islice(target.seeds(), SOME):
                    for _ in range(10):
                        seed = changed(seed, random) or seed
                        try:
                            target.run(seed)
                        except SynreplError:
                            continue
