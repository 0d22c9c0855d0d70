"""Deployments whose database fails over to a standby that lacks commits: no rule may break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from simulator.product import Product
from simulator.simulation import Result, simulate
from synrepl.core.tokens import Token
from synrepl.services.following.consumer import PositionTracker
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.following.position_record import PositionRecord
from synrepl.storage.memory import stream as memory_stream
from synrepl.storage.memory.server import MemoryServer
from synrepl.storage.memory.stream import MemoryStream
from tests.simulator.mutants import CAUGHT, known_first

#: How many seeds are played.
SEEDS = 60

#: The most seeds that a defect may need to show.
MUTANT_SEEDS = 300

#: The end of the story of a seed that fails, in lines.
SHOWN = 40


def play(seed: int) -> Result:
    return simulate(seed, Product(), lose_commits=True)


class FailoverSeeds(TestCase):
    def test_no_surviving_fact_is_missed_and_every_lost_fact_is_reported(self) -> None:
        totals: Counter[str] = Counter()
        for seed in range(1, SEEDS + 1):
            result = play(seed)
            totals.update(result.counts)
            if result.violations:
                story = "\n".join(list(result.transcript.lines())[-SHOWN:])
                self.fail(f"{story}\npython -m simulator --lose-commits --seed {seed}")
        self.assertGreater(totals["resets"], SEEDS)
        self.assertGreater(totals["facts"], 10 * SEEDS)


class FailoverMutants(TestCase):
    """Defects made on purpose, which some seed must find."""

    def assert_caught(self, rules: str, owner: Any, name: str, defect: Any) -> None:
        with patch.object(owner, name, defect):
            for seed in known_first(self.id(), range(1, MUTANT_SEEDS + 1)):
                violations = play(seed).violations
                if violations:
                    break
            else:
                self.fail(f"{name}: not caught within {MUTANT_SEEDS} seeds")
        CAUGHT[self.id()] = seed
        print(f"{self.id()}: caught by seed {seed}: {violations[0][:100]}")
        self.assertIn(violations[0].partition(":")[0], rules.split(), violations[0])

    def test_an_unconfirmed_server_accepts_writes(self) -> None:
        self.assert_caught(
            "R1 R2 R3 R7 LIVENESS", MemoryServer, "require_confirmed", lambda self: None
        )

    def test_streams_are_not_moved_beyond_what_was_announced(self) -> None:
        self.assert_caught("R1 R2 R3 R7 LIVENESS", memory_stream, "MARGIN", 0)

    def test_positions_are_not_rewritten(self) -> None:
        real = MemoryStream.fail_over

        def fail_over(
            self: MemoryStream, number: int, steps: int, announced: Mapping[str, Token], proofs: Any
        ) -> None:
            before = {name: writer.position for name, writer in self.writers.items()}
            recorded = self.recorded
            real(self, number, steps, announced, proofs)
            self.recorded, self.floor = recorded, recorded
            for name, position in before.items():
                self.writers[name].position = position

        self.assert_caught("R1 R2 R3 R7 LIVENESS CRASH", MemoryStream, "fail_over", fail_over)

    def test_handlers_are_not_informed(self) -> None:
        real = HandlerCalls.reset

        async def reset(self: HandlerCalls, *place: Any) -> None:
            if len(place) < 5:
                await real(self, *place)

        self.assert_caught("R3 LIVENESS", HandlerCalls, "reset", reset)

    def test_recorded_positions_are_not_reread(self) -> None:
        def reread(
            self: PositionTracker, recorded: Token | None, incarnation: int, floor: Token
        ) -> None:
            self.incarnation = incarnation

        self.assert_caught("R3 R7 LIVENESS CRASH", PositionTracker, "reread", reread)

    def test_facts_of_the_old_server_are_applied_on_the_new_one(self) -> None:
        self.assert_caught("R3", PositionRecord, "is_void", lambda *_: False)
