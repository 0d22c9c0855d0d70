"""Rooms in a real PostgreSQL, persisted and maintained by processes that are killed: the store is as in memory."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from unittest import TestCase

from simulator import __main__ as command
from simulator.rooms.simulation import simulate_rooms

#: Seeds that are played; `tox -e simulate` plays more.
SEEDS = range(1, int(os.environ.get("SYNREPL_ROOM_SEEDS", "3")) + 1)

#: Steps of a run: fewer than elsewhere, so that this takes seconds.
STEPS = 8

#: The end of the transcript of a seed that fails, in lines.
SHOWN = 40


class RoomSeeds(TestCase):
    """Several seeds."""

    def test_the_store_equals_the_rooms_in_memory_and_a_seed_repeats_itself(self) -> None:
        totals: Counter[str] = Counter()
        stories = []
        for seed in (*SEEDS, SEEDS[0]):
            result = simulate_rooms(seed, STEPS)
            totals.update(result.counts)
            stories.append(list(result.transcript.lines()))
            if result.violations:
                story = "\n".join(stories[-1][-SHOWN:])
                hashes = f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')}"
                command = f"{hashes} python -m simulator --rooms --seed {seed} --steps {STEPS}"
                self.fail(f"{result.violations[0]}\n{story}\nreplay: {command}")
        self.assertEqual(stories[0], stories[-1])
        self.assertNotEqual(stories[0], stories[1])
        self.assertGreater(totals["events"], 200)
        self.assertGreater(totals["batches"], 40)

    def test_the_command_plays_rooms(self) -> None:
        with redirect_stdout(StringIO()) as out:
            self.assertEqual(command.main(["--rooms", "--seed", "1", "--steps", "1"]), 0)
        self.assertIn("seed 1: all rules hold", out.getvalue())
