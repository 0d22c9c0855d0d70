"""Servers that join rooms of others, which lie and vanish, while processes are killed; `tox -e simulate` plays more."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from unittest import TestCase

from simulator import __main__ as command
from simulator.federation.joins_simulation import simulate_joins

#: Steps of a run: fewer than elsewhere, so that this takes seconds.
STEPS = 10

#: The end of the transcript of a seed that fails, in lines.
SHOWN = 40


class JoinSeeds(TestCase):
    """Several seeds."""

    def test_rooms_end_as_if_they_had_never_been_partial_and_a_seed_repeats_itself(self) -> None:
        totals: Counter[str] = Counter()
        stories = []
        for seed in (1, 2, 3, 1):
            result = simulate_joins(seed, STEPS)
            totals.update(result.counts)
            stories.append(list(result.transcript.lines()))
            if result.violations:
                story = "\n".join(stories[-1][-SHOWN:])
                hashes = f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')}"
                replay = f"{hashes} python -m simulator --joins --seed {seed} --steps {STEPS}"
                self.fail(f"{result.violations[0]}\n{story}\nreplay: {replay}")
        self.assertEqual(stories[0], stories[-1])
        self.assertNotEqual(stories[0], stories[1])
        self.assertGreater(totals["completed"], 3)

    def test_the_command_plays_joins(self) -> None:
        with redirect_stdout(StringIO()) as out:
            self.assertEqual(command.main(["--joins", "--seed", "2", "--steps", "1"]), 0)
        self.assertIn("seed 2: all rules hold", out.getvalue())
