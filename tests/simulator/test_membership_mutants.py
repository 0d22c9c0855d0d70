"""Defects around writers that come and go, made on purpose: the simulator catches each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.scenario import MEMBERSHIP_CHANGES, SimulationScenario
from synrepl.core.tokens import Token
from synrepl.positions.settlement import SettlementTracker
from synrepl.services import membership as service
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.membership import Membership
from synrepl.services.writing.writer_lease import LeaseKeeper
from synrepl.storage import membership
from synrepl.storage.memory.lease import MemoryLease
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import Observation
from synrepl.streams.definition import Stream
from tests.simulator.mutants import MutantTestCase


class MembershipMutantTestCase(MutantTestCase):
    """Where who writes changes."""

    def may_show(self, scenario: SimulationScenario) -> bool:
        return any(name in MEMBERSHIP_CHANGES for name in scenario.faults)


class DrainDefects(MembershipMutantTestCase):
    """In the proof that a writer holds nothing."""

    def test_open_transactions_are_ignored(self) -> None:
        async def at_once(
            members: Membership, stream: Stream, writer: str, timeout_s: float
        ) -> None:
            await members._database.run(
                "drain", lambda txn: membership.drain(txn, stream.name, writer)
            )

        self.assert_caught("R8", (Membership, "drain", at_once))

    def test_holders_are_not_remembered(self) -> None:
        class Forgetful(SettlementTracker):
            def observe(self, last: Token, holders: Any) -> Token:
                return last

        self.assert_caught("R8", (service, "SettlementTracker", Forgetful))

    def test_transactions_with_an_old_snapshot_are_forgotten(self) -> None:
        async def at_once(members: Membership, stream: Stream, writer: str) -> bool:
            return True

        self.assert_caught("R8", (Membership, "_conclude", at_once))

    def test_a_dead_writer_counts_as_drained(self) -> None:
        look = Membership._look

        async def alive(members: Membership, stream: Stream, writer: str) -> Any:
            last, seen = await look(members, stream, writer)
            return last, type(seen)(seen.epoch, seen.position, False, seen.is_alive, seen.holders)

        self.assert_caught("R8", (Membership, "_look", alive))


class RemovedWriterDefects(MembershipMutantTestCase):
    """In waiting for writers."""

    def test_a_removed_writer_is_waited_for(self) -> None:
        bounds = StreamState.bounds

        def with_ghosts(state: StreamState, seen: Observation) -> dict[str, Token]:
            found = bounds(state, seen)
            gone = [w for w, known in seen.writers.items() if known.epoch and not known.is_held]
            for writer in gone:
                stuck.setdefault((state, writer), found.get(writer, 0))
            return {w: min(at, stuck.get((state, w), at)) for w, at in found.items()}

        stuck: dict[object, Token] = {}
        self.assert_caught("LIVENESS R2 R3", (StreamState, "bounds", with_ghosts))


class NameDefects(MembershipMutantTestCase):
    """In who may write."""

    def test_a_writer_is_removed_without_proof(self) -> None:
        self.assert_caught("R8", (membership, "_try_lock", lambda *_: True))

    def test_a_name_is_taken_while_another_process_has_it(self) -> None:
        async def at_once(
            store: MemoryStore, writer: str, streams: Sequence[Stream]
        ) -> MemoryLease:
            await store.step("open writer")
            return store._claim(writer, [store._of(stream) for stream in streams])

        self.assert_caught("R8", (MemoryStore, "open_writer", at_once))

    def test_a_successor_announces_positions_of_its_predecessor_from_memory(self) -> None:
        recover = LeaseKeeper._recover

        async def from_memory(
            name: LeaseKeeper, stream: Stream, seen: Observation, gone: bool
        ) -> Any:
            before = name.ledgers.get(stream.name)
            ledger, facts = await recover(name, stream, seen, gone)
            if before is not None:
                ledger._position = max(before.position, seen.last)
                facts = []
            return ledger, facts

        self.assert_caught("R1 R3", (LeaseKeeper, "_recover", from_memory))
