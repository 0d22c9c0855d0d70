"""Partial rooms are completed: the store is as if it had known everything from the start."""

from __future__ import annotations

from synrepl.services.federation.resync import room_resync
from synrepl.services.federation.resync.worker import ResyncWorker
from synrepl.storage.database import Transaction
from synrepl.storage.federation.outgoing_events import events_to_send
from synrepl.storage.rooms.partial import steps
from synrepl.storage.rooms.partial.jobs import claim_jobs
from synrepl.storage.rooms.partial.steps import ListTarget
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.services.federation.joining_server import US
from tests.services.federation.resync.resync_case import ALICE, BOB, ResyncCase


class CompletedRooms(ResyncCase):
    async def test_a_room_is_completed_in_each_room_version(self) -> None:
        for version in ("1", "3", "6", "9", "10", "11", "12"):
            room = self.made_room(version)
            done = await self.here.join(room.room_id, "a")
            self.assertTrue(done.is_partial)
            self.assertLess(
                self.sql("SELECT count(*) FROM synrepl._current_state"),
                len(room.room.current_state()),
            )
            self.a.send(room.room_id, "m.room.topic", ALICE, {"topic": "later"}, "")
            await self.sent_to_us(room)
            await self.here.complete()
            whole = await self.check_complete(room)
            self.assertEqual(whole.current_state(), room.room.current_state())
            self.assertEqual(
                self.sql("SELECT membership FROM synrepl._memberships WHERE user_id = %s", US),
                "join",
            )
            await self.empty()
            self.a.rooms.clear()

    async def test_other_servers_are_still_sent_what_was_said_in_the_partial_room(self) -> None:
        room = self.made_room()
        await self.join(room)
        said = self.a.send(room.room_id, "m.room.message", ALICE, {"body": "hello"})
        await self.one.persist(room.room_id, room.version, [IncomingEvent(said, outgoing=True)])
        await self.here.complete()
        await self.check_complete(room)
        sent = await self.read(lambda txn: events_to_send(txn, 0, 2**60, 10))
        stream_id = "SELECT stream_id FROM synrepl._room_events WHERE event_id = %s"
        self.assertEqual([each.stream_id for each in sent], [self.sql(stream_id, said.event_id)])

    async def test_a_process_that_was_killed_goes_on_when_it_starts_again(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.database.run(
            "claim", lambda txn: claim_jobs(txn, "one", 1, lambda txn, rooms: rooms)
        )
        self.sql("UPDATE synrepl._resync_jobs SET leased_until = now() + interval '1 hour'")
        await self.here.worker.look()
        self.assertEqual(list(self.here.worker.rooms), [])  # the claim has not run out
        worker = ResyncWorker(self.here.parts, "one", ["one"])
        scheduler = self.here.parts.scheduler
        scheduler.spawn("worker", worker.run())
        while self.sql("SELECT ended_at FROM synrepl._resync_jobs") is None:
            await scheduler.sleep(0.01)
        await worker.stop()
        await self.check_complete(room)

    async def test_a_list_that_a_crash_of_the_database_took_is_asked_for_again(self) -> None:
        room = self.made_room()
        await self.join(room)
        find = steps.list_target
        found: list[ListTarget | None] = []

        def crash(txn: Transaction, room_no: int) -> ListTarget | None:
            found.append(find(txn, room_no))
            if len(found) == 2:  # there is a list
                txn.execute("TRUNCATE synrepl._listed_events, synrepl._fetched_events")
            return found[-1]

        self.patch(room_resync, "list_target", crash)
        await self.here.complete()
        await self.check_complete(room)
        self.assertEqual(len(self.federation.asked("state_ids")), 2)
        self.assertEqual(self.attempts(), {"a": "ok"})

    async def test_servers_that_sent_something_are_asked_before_those_that_are_only_named(
        self,
    ) -> None:
        room = await self.shared_room()
        answer = await self.here.handshake(room.room_id, "a")
        named = frozenset({"a", *(f"s{number}.example" for number in range(200))})
        await self.here.joins.persist(answer._replace(servers=named), "a")
        await self.a.outgoing.send_all()
        spoken = self.b.send(room.room_id, "m.room.message", BOB, {"body": "hi"})
        cited = [IncomingEvent(room.event(e), outlier=True) for e in spoken.auth_event_ids]
        await self.one.persister.persist(room.room_id, "10", [*cited, IncomingEvent(spoken)])
        await self.b.outgoing.send_all()
        self.federation.stop("a")
        await self.here.complete()
        self.assertEqual(self.attempts(), {"a": "away", "b": "ok"})
        await self.check_complete(room)
