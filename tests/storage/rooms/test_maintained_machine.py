"""Random rooms that are also purged, compacted, collected, erased and forgotten, with failures at any statement."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from simulator.rooms.comparison import Kept
from simulator.rooms.kept_outliers import kept_outliers, staying_events
from simulator.rooms.random_rooms import USERS, RestlessRoom
from simulator.rooms.server import ImmediateDatabase, result_of
from synrepl.rooms import CompactStateMap, Event, Judged, Room, Viewer, auth_dependencies
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.erased_form import erased_form
from synrepl.storage.rooms.maintenance.findings import RoomProblem
from synrepl.storage.rooms.maintenance.line_rebuild import rebuild_lines
from synrepl.storage.rooms.maintenance.purge import CannotPurge
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.tables import ensure_tables
from tests.storage.rooms.blocking_store import (
    BlockingPersister,
    FailingStatement,
    InjectedFailure,
    RecordedFacts,
)
from tests.storage.rooms.rooms_as_stored import as_stored
from tests.storage.rooms.test_persisting_machine import StoreMachine, seeds
from tests.storage.rooms.test_visibility import RoomCase

EXAMPLES = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "10"))

#: The statement at which an operation fails.
failures = st.one_of(st.none(), st.integers(1, 90))


class _Undo(Exception):
    """Ends a transaction without its changes."""


class MaintainedMachine(StoreMachine):
    """Rooms are persisted and maintained; what is kept is as in memory, and users see what the rules show of it."""

    case: ClassVar[RoomCase]

    @initialize(seed=seeds, version=st.sampled_from(["1", "6", "10", "11", "12"]))
    def begin(self, seed: int, version: str) -> None:
        self.gone: set[str] = set()
        self.demoted: set[str] = set()
        self.unordered: set[str] = set()
        self.returned = False
        self.raw: dict[str, bytes] = {}
        self.erased: set[str] = set()
        self.processes[0].database.run(
            "nobody is erased",
            lambda txn: txn.execute("DELETE FROM synrepl._erased_users") and None,
        )
        super().begin(seed, version)
        self.made = RestlessRoom(Random(seed), version)
        self.room = Room(self.made.version)
        self.unsent = list(self.made.events)

    # -- what may be sent ------------------------------------------------------------------

    def is_full(self, event_id: str) -> bool:
        """Whether an event is here with its state."""
        return (
            self.room.has_state(event_id)
            and event_id not in self.gone
            and event_id not in self.demoted
        )

    def is_here(self, event_id: str) -> bool:
        """Whether an event is here."""
        return event_id in self.room and event_id not in self.gone

    def available(self) -> list[Event]:
        """The events that are judged as in memory: nothing that they follow or cite was purged."""
        if not self.gone and not self.demoted:
            return self.unsent
        may: dict[str, Event] = {}
        for each in self.unsent:
            follows = all(self.is_full(one) or one in may for one in each.prev_event_ids)
            if follows and all(self.is_here(one) or one in may for one in auth_dependencies(each)):
                may[each.event_id] = each
        return list(may.values())

    def again(self) -> list[Event]:
        return [
            each
            for each in self.sent
            if each.event_id not in self.gone and each.event_id not in self.demoted
        ]

    def known(self) -> list[Judged[CompactStateMap]]:
        return [
            each
            for each in super().known()
            if each.state_after is not None
            and all(self.is_here(one) for one in each.state_after.values())
        ]

    def kept(self) -> Kept:
        # An ordering is one more than the highest of those before.
        for each in self.room:
            if not self.unordered.isdisjoint(each.event.prev_event_ids):
                self.unordered.add(each.event.event_id)
        return Kept(self.gone, self.demoted, self.unordered, self.raw)

    def check_told(self, told: dict[str, list[int]], found: dict[str, list[int]]) -> None:
        for event_id, (stream_id,) in found.items():
            assert stream_id in told[event_id]
        assert told.keys() - found.keys() <= self.gone | self.demoted
        if not self.returned and not self.gone and not self.demoted:
            super().check_told(told, found)

    # -- maintenance -----------------------------------------------------------------------

    def settle(self) -> bool:
        """Send everything that may be sent, so that no event waits; whether there is a room then."""
        events = list(self.available())
        self.unsent = [each for each in self.unsent if each not in events]
        self.persist(0, [IncomingEvent(each) for each in events], None, False)
        return self.was_sent and not list(self.room.waiting) and self.room.room_id is not None

    def is_partial(self, txn: Transaction) -> bool:
        """Whether the room is one whose state is partial."""
        txn.execute("SELECT count(*) FROM synrepl._partial_rooms")
        return bool(txn.fetchone()[0])

    def maintain(
        self, work: Callable[[RoomMaintenance], Coroutine[Any, Any, object]], fail_at: int | None
    ) -> None:
        """Run an operation; if it fails, the room is whole, and it is run again."""
        database = self.processes[0].database
        if fail_at is not None:
            try:
                failing = ImmediateDatabase(database, FailingStatement(fail_at))
                result_of(work(RoomMaintenance(failing)))
            except InjectedFailure:
                self.verify()
        result_of(work(RoomMaintenance(ImmediateDatabase(database))))

    def verify(self) -> None:
        """Nothing is wrong with any room."""

        async def findings() -> list[object]:
            verification = RoomVerification(ImmediateDatabase(self.processes[0].database))
            return [
                each
                for room_id in await verification.room_ids()
                async for each in verification.findings(room_id)
                # Random events have no content hashes.
                if each.problem is not RoomProblem.WRONG_CONTENT
            ]

        found = result_of(findings())
        assert not found, found

    def check(self) -> None:
        """All is well after an operation."""
        self.verify()
        self.compare()
        self.processes[0].database.run("see", self.see)
        with contextlib.suppress(_Undo):
            self.processes[0].database.run("see", self.see_again)

    def see_again(self, txn: Transaction) -> None:
        """What is derived can be derived again."""
        rebuild_lines(txn, require_room(txn, self.room.room_id or ""))
        self.see(txn)
        raise _Undo

    def see(self, txn: Transaction) -> None:
        """Users see what the rules show of what is kept."""
        stored = as_stored(txn, self.room)
        for number, user in enumerate([*USERS[:4], "@stranger:z"]):
            viewer = Viewer(user, number % 2 == 1)
            self.case.assert_users_verdicts(txn, stored, viewer, self.erased)
            self.case.assert_pages(txn, stored, viewer, self.erased, 7)

    @precondition(lambda self: len(self.sent) > 8)
    @rule(part=st.integers(1, 12), by_stream=st.booleans(), fail_at=failures)
    def history_is_purged(self, part: int, by_stream: bool, fail_at: int | None) -> None:
        if not self.settle():
            return
        room_id = self.room.room_id or ""
        is_partial = self.processes[0].database.run("read", self.is_partial)
        assert is_partial or not self.room.partial_event_ids
        if is_partial:
            # Perhaps with no partial event left, until its resync ends.
            try:
                self.maintain(
                    lambda to: to.purge(room_id, PurgePoint.of_topological(9), index_check=False),
                    None,
                )
            except CannotPurge:
                return
            raise AssertionError("a room with partial state was purged")
        before: dict[str, tuple[int, int]] = {}
        redacted_by: dict[str, str] = {}

        def read(txn: Transaction) -> None:
            txn.execute(
                "SELECT e.event_id, e.topological, e.stream_id, r.event_id FROM synrepl._room_events e"
                " LEFT JOIN synrepl._room_events r ON r.event_no = e.redacted_by"
            )
            for event_id, topological, stream_id, redaction in txn.fetchall():
                if stream_id is not None:
                    before[event_id] = topological, stream_id
                if redaction is not None:
                    redacted_by[event_id] = redaction

        database = self.processes[0].database
        database.run("read", read)
        positions = sorted(each[by_stream] for each in before.values())
        bound = positions[min(len(positions) - 1, len(positions) * part // 11)]
        made = PurgePoint.of_stream if by_stream else PurgePoint.of_topological
        point = made(bound)
        self.maintain(lambda to: to.purge(room_id, point, index_check=False), fail_at)
        staying = staying_events(self.room, before)
        full = {one for one, at in before.items() if at[by_stream] >= bound or one in staying}
        outliers = database.run(
            "outliers", lambda txn: kept_outliers(txn, self.room, full, redacted_by)
        )
        here = {each.event.event_id for each in self.room}
        self.gone = here - full - outliers
        self.demoted = {one for one in outliers if self.room.has_state(one)}
        self.check()

    @precondition(lambda self: self.gone or self.demoted)
    @rule(seed=seeds, size=st.integers(1, 5), who=st.integers(0, 1), backfilled=st.booleans())
    def history_comes_back(self, seed: int, size: int, who: int, backfilled: bool) -> None:
        """Events that were purged, and that others follow, with their states as other servers report them."""
        candidates = [each for each in self.room if not self.is_here(each.event.event_id)]
        candidates += [each for each in self.room if each.event.event_id in self.demoted]
        Random(seed).shuffle(candidates)
        chosen = 0
        for each in candidates:
            state, event = each.state_before, each.event
            if state is None or each.soft_failure is not None or chosen == size:
                continue
            if event.event_id not in self.followed():
                continue
            if not all(map(self.is_here, [*state.values(), *auth_dependencies(event)])):
                continue
            chosen += 1
            if event.event_id in self.gone:  # what is kept as an outlier stays erased
                self.raw.pop(event.event_id, None)
            self.gone.discard(event.event_id)
            self.demoted.discard(event.event_id)
            self.unordered.add(event.event_id)
            self.returned = True
            self.backfilled.add(event.event_id)
            self.processes[who].persist(
                self.made.room_id,
                self.made.version,
                [IncomingEvent(event, state_before=state.as_dict(), backfilled=backfilled)],
            )
        self.compare()

    def followed(self) -> set[str]:
        """Missing events that others follow."""

        def read(txn: Transaction) -> set[str]:
            txn.execute("SELECT missing_id FROM synrepl._backward_extremities")
            return {missing_id for (missing_id,) in txn.fetchall()}

        found: list[set[str]] = []
        self.processes[0].database.run("followed", lambda txn: found.append(read(txn)))
        return found[-1]

    @precondition(lambda self: self.was_sent)
    @rule(fail_at=failures)
    def states_are_compacted(self, fail_at: int | None) -> None:
        room_id = self.room.room_id
        if room_id is not None:
            self.maintain(lambda to: to.compact(room_id, index_check=False), fail_at)
            self.check()

    @precondition(lambda self: self.was_sent)
    @rule(rebase=st.booleans(), fail_at=failures)
    def groups_are_collected(self, rebase: bool, fail_at: int | None) -> None:
        room_id = self.room.room_id
        if room_id is not None:
            self.maintain(lambda to: to.collect(room_id, index_check=False, rebase=rebase), fail_at)
            self.check()

    @precondition(lambda self: len(self.sent) > 4)
    @rule(user=st.sampled_from(USERS), fail_at=failures)
    def a_user_is_erased(self, user: str, fail_at: int | None) -> None:
        if not self.settle():
            return
        self.erased.add(user)
        self.maintain(lambda to: to.erase_user(user), fail_at)
        for each in self.room:
            event = each.event
            if event.sender == user and self.is_here(event.event_id):
                self.raw[event.event_id] = erased_form(event)
        self.check()

    @precondition(lambda self: self.was_sent)
    @rule(fail_at=failures, live=st.booleans())
    def the_room_is_forgotten_and_comes_again(self, fail_at: int | None, live: bool) -> None:
        room_id = self.made.room_id
        self.maintain(lambda to: self.forgotten(to, room_id), fail_at)
        self.verify()
        self.streams.clear()
        self.room = Room(self.made.version)
        self.unsent = list(self.made.events)
        self.sent = []
        self.was_sent = self.returned = False
        for each in (self.backfilled, self.gone, self.demoted, self.unordered):
            each.clear()
        self.raw.clear()
        self.persist(
            0, [IncomingEvent(each, live) for each in self.batch(0, 9, False)], None, False
        )

    async def forgotten(self, maintenance: RoomMaintenance, room_id: str) -> None:
        """Forget the room; a removal that was complete is not repeated."""
        known = self.processes[0].database.run(
            "rooms", lambda txn: txn.execute("SELECT count(*) FROM synrepl._rooms").fetchone()[0]
        )
        if known:
            left = await maintenance.forget(room_id, "nobody.example")
            assert not any(left.values()), left


class MaintainedStoreEqualsMemory(RoomCase):
    """The machine, on a database."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        streams = RecordedFacts()
        processes = [BlockingPersister(self.dsn, name, streams) for name in ("one", "two")]
        for process in processes:
            self.addCleanup(process.database.close)

        self.database.run("tables", lambda txn: ensure_tables(txn, ROOM_STREAMS))

        class Machine(MaintainedMachine):
            """With this database."""

        Machine.dsn, Machine.processes, Machine.streams = self.dsn, processes, streams
        Machine.case = self
        self.machine = Machine

    def test_random_rooms_that_are_maintained(self) -> None:
        try:
            run_state_machine_as_test(  # type: ignore[no-untyped-call]
                self.machine,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=20,
                    deadline=None,
                    # Shrinking takes many minutes, and the steps tell enough.
                    phases=[Phase.explicit, Phase.reuse, Phase.generate],
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except Exception as error:
            # The runner does not show notes, which have the steps.
            steps = "\n".join(getattr(error, "__notes__", ()))
            raise AssertionError(f"{error}\n{steps}") from error
