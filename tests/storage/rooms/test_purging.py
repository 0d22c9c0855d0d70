"""Purges: what is kept is as it was, nothing else is left, and a killed purge is gone on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from synrepl.rooms import Event, Room, StateKey, Viewer
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.rooms.maintenance.marks import ReworkedMeanwhile, mark_room
from synrepl.storage.rooms.maintenance.purge import CannotPurge
from synrepl.storage.rooms.maintenance.purge_point import NoPurgePoint, PurgePoint
from synrepl.storage.rooms.maintenance.purge_rest import remove_keys
from synrepl.storage.rooms.states.state_groups import read_states
from synrepl.storage.rooms.tables.events import events_by_id
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.visibility.pages import PageOrder, PageRequest, visible_page
from tests.rooms.auth_rooms import CAROL
from tests.rooms.dags import Dag, dag, dag_names
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.kept_rooms import (
    IntrudingDatabase,
    Killed,
    KilledDatabase,
    MaintainedCase,
)
from tests.storage.rooms.store_case import PersistingProcess

T = TypeVar("T")


class Purging(MaintainedCase):
    """Rooms of the vectors, of which a part is purged."""

    timeout = 900

    async def test_what_is_kept_is_as_it_was_and_nothing_else_is_left(self) -> None:
        for number, name in enumerate(dag_names(60)):
            room_dag = dag(name)
            room = self.in_memory(room_dag)
            await self.persist(room_dag)
            redacted_by = await self.redactions(room)
            highest = max(each.topological for each in room if each.state_before is not None)
            for part in ((0.2, 0.9), (0.5, 1.1))[number % 2]:
                point = PurgePoint.of_topological(int(highest * part))
                report = await self.maintenance.purge(room.room_id or "", point, index_check=False)
                full = self.full_events(room, point)
                outliers = await self.outliers(room, full, redacted_by)
                await self.check_kept(room, full, outliers, (name, part))
                self.assertEqual(await self.verified(room.room_id or ""), [], (name, part))
                self.assertEqual(set(report.leftovers.values()), {0}, (name, report))
                self.assertLessEqual(report.rows, report.plan.rows + 2 * report.plan.state_events)
            await self.empty()

    async def test_a_purge_that_is_killed_anywhere_leaves_the_room_whole_and_is_gone_on_with(
        self,
    ) -> None:
        room_dag = dag(next(name for name in dag_names(60) if "war" in name))
        room = self.in_memory(room_dag)
        room_id = room.room_id or ""
        await self.persist(room_dag)
        redacted_by = await self.redactions(room)
        highest = max(each.topological for each in room if each.state_before is not None)
        point = PurgePoint.of_topological(highest // 2)

        async def check() -> None:
            self.assertEqual(await self.verified(room_id), [])

        killed = await self.kill_everywhere(
            lambda to: to.purge(room_id, point, index_check=False), check
        )
        expected = {"cut edges", "purge events", "rebase state groups", "remove state groups"}
        self.assertLessEqual({*expected, "remove outliers"}, killed)
        full = self.full_events(room, point)
        await self.check_kept(room, full, await self.outliers(room, full, redacted_by))
        self.assertEqual(await self.verified(room_id), [])

    async def test_events_that_come_later_are_judged_as_without_the_purge(self) -> None:
        for name in dag_names(60):
            room_dag = dag(name)
            half = len(room_dag.events) // 2
            await self.persist(room_dag, 0, half)
            room = self.in_memory(room_dag, half)
            highest = max(each.topological for each in room if each.state_before is not None)
            point = PurgePoint.of_topological(highest // 2)
            await self.maintenance.purge(room.room_id or "", point, index_check=False)
            await self.persist(room_dag, half)
            for event in room_dag.events[half:]:
                room.receive(event, room_dag.soft_failures)
            await self.read(lambda txn, room=room, name=name: self.compare_judged(txn, room, name))  # type: ignore[misc]
            self.assertEqual(await self.verified(room.room_id or ""), [], name)
            await self.empty()

    async def test_events_that_come_meanwhile_are_kept_with_what_they_refer_to(self) -> None:
        for name in dag_names(60):
            room_dag = dag(name)
            half = len(room_dag.events) // 2
            await self.persist(room_dag, 0, half)
            room = self.in_memory(room_dag)
            room_id = room.room_id or ""
            point = PurgePoint.of_topological(half // 2)
            database = InterruptedDatabase(self.database, self.one, room_dag, half)
            await RoomMaintenance(database).purge(room_id, point, index_check=False)
            self.assertGreater(database.next_event, half, name)
            await self.persist(room_dag, database.next_event)
            await self.read(lambda txn, room=room, name=name: self.compare_judged(txn, room, name))  # type: ignore[misc]
            found = await self.verified(room_id)
            self.assertEqual(found, [], name)
            await self.empty()

    def compare_judged(self, txn: Transaction, room: Room, name: str) -> None:
        """What is stored with its state has the verdicts and states of the room in memory."""
        row = require_room(txn, room.room_id or "")
        rows = events_by_id(txn, [each.event.event_id for each in room])
        groups: dict[int, dict[StateKey, str]] = {}
        for event_id, stored in rows.items():
            expected = room[event_id]
            if not stored.is_outlier:
                assert expected.state_before is not None
                assert expected.state_after is not None
                assert stored.group_before is not None
                assert stored.group_after is not None
                self.assertEqual(stored.is_rejected, not expected.accepted, (name, event_id))
                groups[stored.group_before] = expected.state_before.as_dict()
                groups[stored.group_after] = expected.state_after.as_dict()
        for group, state in read_states(txn, row, groups).items():
            self.assertEqual(state, groups[group], (name, group))

    async def test_a_point_may_be_an_event_or_a_stream_position(self) -> None:
        room_dag = dag(dag_names(60)[-1])
        room = self.in_memory(room_dag)
        room_id = room.room_id or ""
        await self.persist(room_dag)
        middle = list(room)[len(room) // 2]
        point = await self.maintenance.purge_point(room_id, middle.event.event_id)
        self.assertEqual(point, PurgePoint.of_topological(middle.topological))
        stream_id = self.sql(
            "SELECT stream_id FROM synrepl._room_events WHERE event_id = %s", middle.event.event_id
        )
        plan = await self.maintenance.plan_purge(room_id, PurgePoint.of_stream(stream_id))
        report = await self.maintenance.purge(
            room_id, PurgePoint.of_stream(stream_id), index_check=False
        )
        self.assertEqual(report.plan, plan)
        self.assertEqual(set(report.leftovers.values()), {0})
        self.assertEqual(
            self.sql(
                "SELECT count(*) FROM synrepl._room_events e WHERE stream_id < %s AND NOT EXISTS"
                " (SELECT FROM synrepl._forward_extremities x WHERE x.event_no = e.event_no)",
                stream_id,
            ),
            0,
        )
        self.assertEqual(await self.verified(room_id), [])
        with self.assertRaisesRegex(NoPurgePoint, "not in the store"):
            await self.maintenance.purge_point(room_id, "$none")

    async def test_others_hear_of_a_purge(self) -> None:
        room_dag = dag(dag_names(60)[0])
        room_id = room_dag.events[0].room_id
        await self.persist(room_dag)
        epoch = self.sql("SELECT epoch FROM synrepl._rooms")
        facts = "SELECT count(*) FROM synrepl.caches WHERE cache_func = 'ph_cache_fake'"
        await self.maintenance.purge(room_id, PurgePoint.of_topological(20), index_check=False)
        self.assertEqual(self.sql("SELECT epoch FROM synrepl._rooms"), epoch + 1)
        self.assertGreater(self.sql(facts), 0)
        self.assertEqual(
            self.sql(f"SELECT keys->>0 FROM ({facts.replace('count(*)', 'keys')}) f LIMIT 1"),
            room_id,
        )

    async def test_a_room_with_partial_state_is_not_purged(self) -> None:
        room_dag = dag(dag_names(60)[0])
        await self.persist(room_dag)
        # Also when none of its events has partial state any more: a new epoch would void its resync job.
        self.sql(
            "INSERT INTO synrepl._partial_rooms"
            " (room_no, epoch, device_lists_stream_id, join_event_id, joined_via)"
            " SELECT room_no, epoch, 1, '$join', 'there.example' FROM synrepl._rooms RETURNING 1"
        )
        with self.assertRaisesRegex(CannotPurge, "its state is partial"):
            await self.maintenance.purge(
                room_dag.events[0].room_id, PurgePoint.of_topological(20), index_check=False
            )


class InterruptedDatabase:
    """A database in which a few events are persisted before each transaction of another user of it."""

    def __init__(
        self, database: Database, process: PersistingProcess, room_dag: Dag, next_event: int
    ) -> None:
        self._database = database
        self._process = process
        self._dag = room_dag
        self.next_event = next_event

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Persist an event, then run the work."""
        events = self._dag.events[self.next_event : self.next_event + 1]
        if events:
            self.next_event += 1
            await self._process.persist(
                events[0].room_id,
                self._dag.version,
                [IncomingEvent(each, self._dag.soft_failures) for each in events],
            )
        return await self._database.run(name, work, read_only=read_only, isolation=isolation)


class PurgedBits(MaintainedCase):
    """Small rooms in which a purge leaves a part of something."""

    async def test_members_see_what_follows_a_purge_that_was_interrupted(self) -> None:
        small = SmallRoom("10")
        cites = [small.create, small.alice, small.levels]
        content = {"history_visibility": "joined"}
        joined_only = small.event(
            "m.room.history_visibility", content, [small.carol], cites, key=""
        )
        made = [*small.base, small.carol, joined_only]
        for _ in range(150):
            made.append(small.topic(made[-1]))
        made.append(small.member("@dave:d", "join", made[-1:], [small.create, small.rules]))
        for _ in range(5):
            made.append(small.message(made[-1]))
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, made)
        kept = [each.event_id for each in made[-3:]]
        point = await self.maintenance.purge_point(room_id, kept[0])
        request = PageRequest(3)
        last, pages = 0, 0
        while True:
            killed = KilledDatabase(self.database, last)
            try:
                await RoomMaintenance(killed).purge(room_id, point, index_check=False)
            except Killed:
                last += 3
            else:
                break
            for order in PageOrder:
                page = await self.read(
                    lambda txn, order=order: visible_page(  # type: ignore[misc]
                        txn, room_id, Viewer("@dave:d"), request._replace(order=order)
                    )
                )
                self.assertEqual([each.event_id for each in page.events], kept[::-1], last)
                pages += 1
        self.assertGreater(pages, 20)

    async def test_a_batch_may_run_again_and_voids_the_marks_of_others(self) -> None:
        small = SmallRoom("10")
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, small.base)
        room = await self.read(lambda txn: require_room(txn, room_id))
        mark, other = [
            await self.read(lambda txn: mark_room(txn, room.room_no).mark) for _ in range(2)
        ]
        for _ in range(3):
            following = await self.read(lambda txn: remove_keys(txn, mark, []).mark)
            with self.assertRaises(ReworkedMeanwhile):
                await self.read(lambda txn: remove_keys(txn, other, []))
        await self.read(lambda txn: remove_keys(txn, following, []))

    async def test_what_events_refer_to_that_come_just_before_it_goes_is_kept(self) -> None:
        small = SmallRoom("10")
        messages = [small.carol]
        for _ in range(5):
            messages.append(small.message(messages[-1]))
        old = messages[2]
        follows = small.message(old)
        # No rule lets it cite a message, so it is rejected; but it does.
        cites = small.event(
            "m.room.message", {}, messages[-1:], [small.create, small.alice, messages[3]]
        )
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, [*small.base, *messages])

        async def send() -> None:
            await self.one.persist(room_id, small.version, [follows, cites])

        database = IntrudingDatabase(self.database, "purge events", send)
        point = self.at(messages[4])
        report = await RoomMaintenance(database).purge(room_id, point, index_check=False)
        self.assertEqual(set(report.leftovers.values()), {0})
        self.assertEqual(await self.verified(room_id), [])
        found = await self.read(
            lambda txn: events_by_id(txn, [each.event_id for each in (*messages, follows, cites)])
        )
        self.assertNotIn(old.event_id, found)
        self.assertTrue(found[messages[3].event_id].is_outlier)
        self.assertEqual(found[follows.event_id].prev_nos, [])
        self.assertEqual(
            self.sql(
                "SELECT missing_id FROM synrepl._backward_extremities WHERE child_no = %s",
                found[follows.event_id].event_no,
            ),
            old.event_id,
        )

    async def test_a_rejected_event_that_stays_as_an_outlier_stays_rejected(self) -> None:
        small = SmallRoom("10")
        cites = [small.create, small.levels]
        topic = small.event("m.room.topic", {}, [small.carol], cites, "@dave:d", "")
        end = small.message(topic)
        cites = [small.create, small.alice, topic]
        citing = small.event("m.room.message", {}, [end], cites)
        room_id = small.create.room_id
        made = [*small.base, small.carol, topic, end, citing]
        await self.one.persist(room_id, small.version, made)
        await self.maintenance.purge(room_id, self.at(citing), index_check=False)
        rows = await self.read(lambda txn: events_by_id(txn, [topic.event_id]))
        stored = rows[topic.event_id]
        self.assertEqual((stored.is_outlier, stored.is_rejected), (True, True))
        self.assertIsNotNone(stored.refusal)

    def rejoined(self, small: SmallRoom) -> list[Event]:
        """Carol joins three times; what is authorised by the first two joins is not the third."""
        cites = [small.create, small.rules]
        again = small.member(CAROL, "join", [small.carol], [*cites, small.carol])
        last = small.member(CAROL, "join", [again], cites)
        return [small.carol, again, last, small.message(last)]

    async def test_outliers_that_waiting_events_cite_are_kept(self) -> None:
        small = SmallRoom("10")
        made = self.rejoined(small)
        missing = small.message(made[-1])
        cites = [small.create, small.levels, made[1]]
        waiting = small.event("m.room.message", {}, [missing], cites, CAROL)
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, [*small.base, *made, waiting])
        report = await self.maintenance.purge(room_id, self.at(made[-1]), index_check=False)
        self.assertEqual(set(report.leftovers.values()), {0})
        done = await self.one.persist(room_id, small.version, [missing])
        self.assertEqual(
            [each.event_id for each in done.judged], [missing.event_id, waiting.event_id]
        )
        self.assertEqual(await self.verified(room_id), [])

    async def test_what_an_outlier_cites_is_kept_when_an_event_comes_that_cites_it(self) -> None:
        small = SmallRoom("10")
        made = self.rejoined(small)
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, [*small.base, *made])
        cites = [small.create, small.levels, made[1]]
        late = small.event("m.room.message", {}, made[-1:], cites, CAROL)

        async def send() -> None:
            await self.one.persist(room_id, small.version, [late])

        database = IntrudingDatabase(self.database, "remove outliers", send)
        point = self.at(made[-1])
        report = await RoomMaintenance(database).purge(room_id, point, index_check=False)
        self.assertEqual(set(report.leftovers.values()), {0})
        self.assertEqual(await self.verified(room_id), [])
        ids = [each.event_id for each in made]
        found = await self.read(lambda txn: events_by_id(txn, ids))
        self.assertEqual([each for each in ids if each not in found], [])

    def at(self, event: Event) -> PurgePoint:
        """The point at the stream position of an event, which stays."""
        return PurgePoint.of_stream(
            self.sql(
                "SELECT stream_id FROM synrepl._room_events WHERE event_id = %s", event.event_id
            )
        )
