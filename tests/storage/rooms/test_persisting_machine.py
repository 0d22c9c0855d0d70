"""Random rooms, arrival orders, restarts, failures at any statement: the store equals the room in memory."""

from __future__ import annotations

import os
from random import Random
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from simulator.rooms.comparison import Kept, compare_room
from simulator.rooms.partially import make_partial
from simulator.rooms.random_rooms import RandomRoom
from simulator.rooms.room_model import receive
from synrepl.rooms import CompactStateMap, Event, Judged, Room
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from synrepl.streams.synapse.backfill import BackfillRow
from synrepl.streams.synapse.events import AllStateRow, EventRow, StateRow
from tests.storage.postgres import PostgresCase
from tests.storage.rooms.blocking_store import BlockingPersister, InjectedFailure, RecordedFacts

seeds = st.integers(0, 1 << 30)

EXAMPLES = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "40"))


class StoreMachine(RuleBasedStateMachine):
    """Two processes persist into one room, and a model in memory gets the same events."""

    dsn: ClassVar[str]
    processes: ClassVar[list[BlockingPersister]]
    streams: ClassVar[RecordedFacts]

    @initialize(seed=seeds, version=st.sampled_from(["1", "6", "10", "11", "12"]))
    def begin(self, seed: int, version: str) -> None:
        for process in self.processes:
            process.forget()
        self.processes[0].empty()
        self.streams.clear()
        self.made = RandomRoom(Random(seed), version)
        self.room = Room(self.made.version)
        self.unsent: list[Event] = list(self.made.events)
        self.sent: list[Event] = []
        self.backfilled: set[str] = set()
        self.was_sent = False

    @rule(count=st.integers(1, 12))
    def make_events(self, count: int) -> None:
        self.unsent += self.made.more(count)

    def available(self) -> list[Event]:
        """The events that may be sent, in an order that respects causes."""
        return self.unsent

    def again(self) -> list[Event]:
        """The events that may be sent again."""
        return self.sent

    def batch(self, seed: int, size: int, shuffled: bool) -> list[Event]:
        rng = Random(seed)
        available = self.available()
        pool = available[: size * 2] if shuffled else available[:size]
        chosen = rng.sample(pool, min(size, len(pool))) if shuffled else list(pool)
        self.unsent = [each for each in self.unsent if each not in chosen]
        return chosen

    @precondition(lambda self: self.unsent)
    @rule(
        seed=seeds,
        size=st.integers(1, 20),
        shuffled=st.booleans(),
        who=st.integers(0, 1),
        live=st.booleans(),
        backfilled=st.sampled_from([False, False, False, True]),
        fail_at=st.one_of(st.none(), st.integers(1, 25)),
        lost=st.sampled_from([False, False, False, True]),
    )
    def events_arrive(
        self,
        seed: int,
        size: int,
        shuffled: bool,
        who: int,
        live: bool,
        backfilled: bool,
        fail_at: int | None,
        lost: bool,
    ) -> None:
        events = self.batch(seed, size, shuffled)
        incoming = [IncomingEvent(each, live, backfilled) for each in events]
        self.persist(who, incoming, fail_at, lost)

    @precondition(lambda self: self.unsent)
    @rule(seed=seeds, size=st.integers(1, 6), who=st.integers(0, 1))
    def outliers_arrive(self, seed: int, size: int, who: int) -> None:
        available = self.available()
        chosen = Random(seed).sample(available, min(size, len(available)))
        chosen.sort(key=self.made.events.index)
        self.persist(who, [IncomingEvent(each, outlier=True) for each in chosen], None, False)

    def known(self) -> list[Judged[CompactStateMap]]:
        """Events whose states another server may report."""
        return [each for each in self.room if each.state_after is not None]

    @precondition(lambda self: self.unsent and len(self.room) > 6)
    @rule(seed=seeds, who=st.integers(0, 1), partial=st.booleans())
    def an_event_arrives_with_its_state(self, seed: int, who: int, partial: bool) -> None:
        """As another server reports it, of one of the events that are here."""
        rng = Random(seed)
        known, available = self.known(), self.available()
        if not known or not available:
            return
        state = rng.choice(known).state_after
        assert state is not None
        event = rng.choice(available)
        if partial:
            self.processes[who].database.run(
                "join partially", lambda txn: make_partial(txn, event.room_id)
            )
        incoming = IncomingEvent(event, state_before=state.as_dict(), partial=partial)
        self.persist(who, [incoming], None, False)

    @precondition(lambda self: self.sent)
    @rule(seed=seeds, who=st.integers(0, 1))
    def events_arrive_again(self, seed: int, who: int) -> None:
        again = self.again()
        chosen = Random(seed).sample(again, min(5, len(again)))
        self.persist(who, [IncomingEvent(each) for each in chosen], None, False)

    @rule(who=st.integers(0, 1))
    def a_process_restarts(self, who: int) -> None:
        self.processes[who].forget()

    def persist(
        self, who: int, incoming: list[IncomingEvent], fail_at: int | None, lost: bool
    ) -> None:
        if not incoming:
            return
        process = self.processes[who]
        room_id, version = self.made.room_id, self.made.version
        try:
            done = process.persist(room_id, version, incoming, fail_at, lost)
        except InjectedFailure:
            self.compare()
            done = process.persist(room_id, version, incoming, None, lost)
        self.was_sent = True
        judged = [each for one in incoming for each in receive(self.room, one)]
        self.sent += [each.event for each in incoming]
        self.backfilled.update([each.event.event_id for each in incoming if each.backfilled])
        if done is not None:
            assert [each.event_id for each in done.judged] == judged
            assert not [each for each in done.judged if each.outcome is EventOutcome.WAITING]
        self.compare()

    def compare(self) -> None:
        """The store is the model; the facts tell what is in it."""
        if not self.was_sent or self.room.room_id is None:
            return
        orders = not self.backfilled
        kept = self.kept()
        self.processes[0].database.run(
            "compare", lambda txn: compare_room(txn, self.room, None, orders, kept)
        )
        self.check_facts()

    def kept(self) -> Kept:
        """What is left of the room."""
        return Kept()

    def check_facts(self) -> None:
        current: dict[tuple[str, str], str] = {}
        told: dict[str, list[int]] = {}
        for token, rows in sorted(self.streams.facts["events"].items()):
            for row in rows:
                if isinstance(row, EventRow):
                    told.setdefault(row.event_id, []).append(token)
                    assert row.rejected is not self.room[row.event_id].accepted
                elif isinstance(row, StateRow):
                    key = row.type, row.state_key
                    current.pop(key, None)
                    if row.event_id is not None:
                        current[key] = row.event_id
                else:
                    assert not isinstance(row, AllStateRow)
        for token, rows in self.streams.facts["backfill"].items():
            for row in rows:
                assert isinstance(row, BackfillRow)
                told.setdefault(row.event_id, []).append(-token)
        assert current == self.room.current_state().as_dict()
        found: dict[str, list[int]] = {}

        def work(txn: Any) -> None:
            txn.execute(
                "SELECT event_id, stream_id FROM synrepl._room_events WHERE stream_id IS NOT NULL"
            )
            found.update({event_id: [stream_id] for event_id, stream_id in txn.fetchall()})

        self.processes[0].database.run("facts", work)
        self.check_told(told, found)

    def check_told(self, told: dict[str, list[int]], found: dict[str, list[int]]) -> None:
        """Each event was told once.

        :param told: stream IDs in facts
        :param found: those in the tables
        """
        assert told == found


class StoreEqualsMemory(PostgresCase):
    """The machine, on a database."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        streams = RecordedFacts()
        processes = [BlockingPersister(self.dsn, name, streams) for name in ("one", "two")]
        for process in processes:
            self.addCleanup(process.database.close)

        class Machine(StoreMachine):
            """With this database."""

        Machine.dsn, Machine.processes, Machine.streams = self.dsn, processes, streams
        self.machine = Machine
        self.processes = processes

    def test_random_rooms(self) -> None:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            self.machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=15,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )

    def test_a_failure_at_every_statement_changes_nothing(self) -> None:
        """Each batch fails at its first statement, then at its second, and so on, until it succeeds."""
        made = RandomRoom(Random(5), "10")
        made.more(60)
        room = Room(made.version)
        one, two = self.processes
        for at in range(0, len(made.events), 15):
            part = [IncomingEvent(each) for each in made.events[at : at + 15]]
            fail_at = 1
            while True:
                process = one if fail_at % 2 else two
                try:
                    process.persist(made.room_id, made.version, part, fail_at)
                except InjectedFailure:
                    fail_at += 1
                    if at:
                        one.database.run("compare", lambda txn: compare_room(txn, room))
                else:
                    break
            self.assertGreater(fail_at, 5)
            for each in part:
                receive(room, each)
            one.database.run("compare", lambda txn: compare_room(txn, room))
