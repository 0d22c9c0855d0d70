"""Defects of joins and of the completion of rooms, which their simulation has to find.

These take minutes, so `tox -e mutants` runs them and the tests do not; the seeds that are known need ``PYTHONHASHSEED=0``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from simulator.federation.joins_simulation import simulate_joins
from synrepl.core.retry import BackOff
from synrepl.services.federation.full_joins import FullJoins
from synrepl.services.federation.inbound.gaps import GapFiller
from synrepl.services.federation.inbound.room_inboxes import RoomInboxes
from synrepl.services.federation.resync import room_resync, worker
from synrepl.storage.rooms.partial import jobs, swap
from synrepl.storage.rooms.partial.swap_facts import append_swap_facts
from synrepl.storage.rooms.partial.swapped_state import StateSwap
from synrepl.streams.row import Row
from synrepl.streams.synapse.un_partial_stated_room import (
    UN_PARTIAL_STATED_ROOM,
    UnPartialStatedRoomRow,
)
from tests.simulator.mutants import CAUGHT, known_first

#: The most seeds that a defect may need to show, and the steps of each run.
SEEDS, STEPS = 40, 16


class JoinMutants(TestCase):
    """One defect each."""

    def assert_caught(self, rules: str, *mutations: tuple[Any, str, Any]) -> None:
        """At least one seed breaks one of these rules with the defects, and does not without.

        :param mutations: what is to be replaced: owner, name, defect
        """
        with ExitStack() as defects:
            for owner, name, defect in mutations:
                defects.enter_context(patch.object(owner, name, defect))
            for seed in known_first(self.id(), range(1, SEEDS + 1)):
                violations = simulate_joins(seed, STEPS).violations
                if violations:
                    break
            else:
                self.fail(f"{mutations[0][1]}: not caught within {SEEDS} seeds")
        CAUGHT[self.id()] = seed
        print(f"{self.id()}: caught by seed {seed}: {violations[0][:100]}")
        self.assertIn(violations[0].partition(":")[0], rules.split(), violations[0])
        self.assertEqual(simulate_joins(seed, STEPS).violations, [])

    def test_nobody_is_told_that_a_room_is_complete(self) -> None:
        def append(outbox: Any, *arguments: Any) -> None:
            append_swap_facts(outbox, *arguments)
            outbox.facts[UN_PARTIAL_STATED_ROOM.name].clear()

        self.assert_caught("ONCE", (swap, "append_swap_facts", append))

    def test_followers_are_told_twice_that_a_room_is_complete(self) -> None:
        def append(outbox: Any, txn: Any, room: Any, *arguments: Any) -> None:
            append_swap_facts(outbox, txn, room, *arguments)
            outbox.append(UN_PARTIAL_STATED_ROOM, [UnPartialStatedRoomRow(room.room_id)])

        self.assert_caught("ONCE", (swap, "append_swap_facts", append))

    def test_what_came_last_is_not_judged_again(self) -> None:
        def judge_last(txn: object, batch: object) -> bool:
            return True

        self.assert_caught("STATE DAMAGE CRASH", (swap, "_judge_last", judge_last))

    def test_gaps_stay(self) -> None:
        def gap_found(gaps: GapFiller, room_id: str, origin: str) -> None:
            pass

        self.assert_caught("LIVENESS", (GapFiller, "gap_found", gap_found))

    def test_staged_events_are_not_judged(self) -> None:
        def wake(inboxes: RoomInboxes, room_id: str) -> None:
            pass

        self.assert_caught("LIVENESS LEFTOVERS", (RoomInboxes, "wake", wake))

    def test_the_current_state_stays_partial(self) -> None:
        def swap_state(*arguments: object) -> StateSwap:
            return StateSwap({}, (), ())

        self.assert_caught(
            "STATE DAMAGE CURRENT LIVENESS CRASH", (swap, "swap_current_state", swap_state)
        )

    def test_events_keep_their_verdicts_and_states(self) -> None:
        def apply_outcomes(txn: object, room: object) -> None:
            pass

        self.assert_caught("STATE DAMAGE JOIN CRASH", (swap, "_apply_outcomes", apply_outcomes))

    def test_nobody_is_told_that_events_have_their_full_state(self) -> None:
        def rows_of_events(txn: object, room_no: int) -> list[Row]:
            return []

        self.assert_caught("TOLD", (swap, "rows_of_events", rows_of_events))

    def test_the_claim_of_a_process_that_was_killed_lasts(self) -> None:
        def release_claims(txn: object, owner: str) -> None:
            pass

        lasts = jobs, "LEASE_S", 1_000_000
        self.assert_caught("LIVENESS", lasts, (worker, "release_claims", release_claims))

    def test_a_room_that_no_server_could_help_with_is_left_alone(self) -> None:
        def wake_jobs(txn: object, server: str) -> int:
            return 0

        waits = room_resync, "ROOM_BACK_OFF", BackOff(1e6, 1e6)
        self.assert_caught("LIVENESS", waits, (worker, "wake_jobs", wake_jobs))

    def test_what_an_interrupted_join_left_stays(self) -> None:
        async def remove_unfinished(joins: FullJoins) -> None:
            pass

        self.assert_caught("LEFTOVERS", (FullJoins, "remove_unfinished", remove_unfinished))
