"""Clients at processes that are killed, cut off and behind one another: they lose and repeat nothing."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from unittest import TestCase

from simulator import __main__ as command
from simulator.clients.simulation import simulate_clients

#: Seeds that are played; `tox -e simulate` plays more.
SEEDS = range(1, int(os.environ.get("SYNREPL_CLIENT_SEEDS", "2")) + 1)

#: Steps of a run: fewer than elsewhere, so that this takes seconds.
STEPS = 25

#: The end of the transcript of a seed that fails, in lines.
SHOWN = 40


class ClientSeeds(TestCase):
    """Several seeds."""

    def test_clients_are_told_everything_once_and_a_seed_repeats_itself(self) -> None:
        totals: Counter[str] = Counter()
        stories = []
        for seed in (*SEEDS, SEEDS[0]):
            result = simulate_clients(seed, STEPS)
            totals.update(result.counts)
            stories.append(list(result.transcript.lines()))
            if result.violations:
                story = "\n".join(stories[-1][-SHOWN:])
                hashes = f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')}"
                replay = f"{hashes} python -m simulator --clients --seed {seed} --steps {STEPS}"
                self.fail(f"{result.violations[0]}\n{story}\nreplay: {replay}")
        self.assertEqual(stories[0], stories[-1])
        self.assertNotEqual(stories[0], stories[1])
        self.assertGreater(totals["events"], 100)
        self.assertGreater(totals["pages"], 20)

    def test_the_command_plays_clients(self) -> None:
        with redirect_stdout(StringIO()) as out:
            self.assertEqual(command.main(["--clients", "--seed", "1", "--steps", "1"]), 0)
        self.assertIn("seed 1: all rules hold", out.getvalue())
