"""What the fuzzer (``tests/fuzz``) begins with is right, so that it is not the harness that it finds."""

from __future__ import annotations

from itertools import islice
from random import Random
from unittest import TestCase, mock

from synrepl.core.errors import SynreplError
from tests.fuzz import partial_rooms
from tests.fuzz.changes import changed
from tests.fuzz.targets import TARGETS

#: Seeds of each target that are tried.
SOME = 15


class FuzzSeeds(TestCase):
    """A little of what ``python -m tests.fuzz`` does, without its libraries."""

    def test_seeds_are_accepted(self) -> None:
        for name, target in TARGETS.items():
            with self.subTest(name):
                seeds = list(islice(target.seeds(), SOME))
                self.assertTrue(seeds)
                for seed in seeds:
                    target.run(seed)

    def test_mutated_seeds_raise_only_named_errors(self) -> None:
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

    def test_seeds_can_be_mutated(self) -> None:
        random = Random(7)
        for name, target in TARGETS.items():
            with self.subTest(name):
                for seed in islice(target.seeds(), SOME):
                    self.assertIsNotNone(changed(seed, random))

    def test_a_document_too_deep_to_copy_is_refused(self) -> None:
        with mock.patch("tests.fuzz.changes.deep_copy", side_effect=RecursionError):
            outcomes = [changed(b'{"a": [1, {"b": 2}]}', Random(seed)) for seed in range(20)]
        self.assertIn(None, outcomes)

    def test_partial_rooms_are_resynced(self) -> None:
        """To the end, over more than the join, with an event that came before what it follows."""
        ended = 0
        for seed in partial_rooms.seeds():
            partial = partial_rooms.partial_room(seed)
            with_state = [each for each in partial.room if each.state_before is not None]
            self.assertGreater(len(with_state), 2)
            ended += not partial.is_partial
        self.assertGreater(ended, 5)
