"""What happens in a room while it is partial: further joins, leaving, kicks, invitations, removal, two processes."""

from __future__ import annotations

from typing import Any

from signedjson.types import SigningKey

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from synrepl.rooms import EventBuilder, EventDraft, room_version
from synrepl.services.federation.resync.room_resync import RoomResync
from synrepl.services.federation.resync.worker import ResyncWorker
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.partial.jobs import claim_jobs
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed, OutgoingEvent
from synrepl.storage.rooms.tables.incoming import EventOutcome, PersistedEvent
from synrepl.storage.tables import ensure_tables
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from tests.services.federation.joining_server import HERE, US, JoiningServer
from tests.services.federation.resync.resync_case import ALICE, BOB, ResyncCase
from tests.services.world import NullLog

THEM = "@them:here"


class PartialRoomScenarios(ResyncCase):
    async def send(
        self,
        room: HostedRoom,
        kind: str,
        content: dict[str, Any],
        state_key: str | None = None,
        sender: str = US,
        memberships: tuple[str, ...] | None = None,
    ) -> PersistedEvent:
        """A user of ours sends an event, and the others hear of it."""
        key: SigningKey = self.federation.keys.signing_key(HERE)
        builder = EventBuilder(room_version(room.version.name), HERE, key)
        draft = EventDraft(kind, sender, content, 1_700_000_000_000, state_key)
        done = await self.one.persister.send(
            room.room_id, builder, OutgoingEvent(draft, None, memberships)
        )
        raw = self.sql(
            "SELECT raw FROM synrepl._room_event_json JOIN synrepl._room_events USING (event_no)"
            " WHERE event_id = %s",
            done.event_id,
        )
        for destination in "ab":
            await self.here.client.send_transaction(destination, done.event_id, 1, [bytes(raw)], [])
        return done

    def membership(self, user: str) -> str | None:
        found = self.sql("SELECT membership FROM synrepl._memberships WHERE user_id = %s", user)
        return None if found is None else str(found)

    async def completed(self, room: HostedRoom) -> None:
        await self.sent_to_us(room)
        await self.here.complete()
        await self.check_complete(room)
        current = {
            (kind, key): event_id
            for kind, key, event_id in self.sql(
                "SELECT jsonb_agg(jsonb_build_array(k.type, k.state_key, e.event_id))"
                " FROM synrepl._current_state c JOIN synrepl._room_keys k USING (room_no, slot)"
                " JOIN synrepl._room_events e USING (event_no)"
            )
        }
        self.assertEqual(current, room.room.current_state().as_dict())

    async def test_a_message_can_be_sent_at_once(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        done = await self.send(room, "m.room.message", {"body": "hello"})
        self.assertIn(done.event_id, room.room.forward_extremities)
        self.assertIn(done.event_id, self.b.rooms[room.room_id].room.forward_extremities)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._partial_events"), 2)
        await self.completed(room)

    async def test_a_second_user_joins_by_a_handshake_of_its_own(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        self.b.send(room.room_id, "m.room.name", BOB, {"name": "refused"}, "")
        self.a.send(room.room_id, "m.room.message", ALICE, {"body": "unheard"})
        epoch = self.sql("SELECT epoch FROM synrepl._partial_rooms")
        servers = self.sql("SELECT count(*) FROM synrepl._partial_room_servers")
        second = await self.here.join(room.room_id, "a", THEM)
        self.assertTrue(second.is_partial)
        self.assertEqual(self.sql("SELECT epoch FROM synrepl._partial_rooms"), epoch)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._partial_room_servers"), servers)
        self.assertEqual((self.membership(US), self.membership(THEM)), ("join", "join"))
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._partial_events"), 2)
        await self.completed(room)
        self.assertEqual((self.membership(US), self.membership(THEM)), ("join", "join"))

    async def test_a_second_user_joins_when_the_room_is_complete(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.completed(room)
        second = await self.here.join(room.room_id, "a", THEM)
        self.assertFalse(second.is_partial)
        self.assertEqual(second.event.outcome, EventOutcome.ACCEPTED)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._partial_rooms"), 0)

    async def test_a_join_that_follows_what_is_not_here_begins_a_new_cycle(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.completed(room)
        self.a.send(room.room_id, "m.room.message", ALICE, {"body": "unheard"})
        second = await self.here.join(room.room_id, "a", THEM)
        self.assertTrue(second.is_partial)
        self.assertEqual(self.sql("SELECT epoch FROM synrepl._partial_rooms"), 2)
        members = self.sql("SELECT count(*) FROM synrepl._memberships")
        self.assertGreater(members, 8)  # those of the state that was complete are still known
        await self.completed(room)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.un_partial_stated_room"), 2)

    async def test_a_room_that_all_users_left_is_abandoned_and_can_be_joined_again(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.send(room, "m.room.member", {"membership": "leave"}, US)
        await self.here.complete()
        self.assertEqual(self.sql("SELECT phase FROM synrepl._resync_jobs"), "abandoned")
        for table in ("_partial_rooms", "_partial_events", "_partial_room_servers"):
            self.assertEqual(self.sql(f"SELECT count(*) FROM synrepl.{table}"), 0, table)
        self.assertEqual(self.sql("SELECT partial FROM synrepl._room_heads"), 0)
        self.assertEqual(self.federation.asked("state_ids"), [])
        await self.check_nothing_is_wrong()
        self.a.send(room.room_id, "m.room.topic", ALICE, {"topic": "meanwhile"}, "")
        await self.join(room)
        await self.completed(room)
        self.assertEqual(self.membership(US), "join")

    async def left(self) -> HostedRoom:
        """A room that was let go of while it was partial."""
        room = await self.shared_room()
        await self.join(room)
        await self.send(room, "m.room.member", {"membership": "leave"}, US)
        await self.here.complete()
        self.assertEqual(self.sql("SELECT phase FROM synrepl._resync_jobs"), "abandoned")
        return room

    async def test_nothing_is_derived_from_what_was_abandoned(self) -> None:
        """The join follows what is here, but nobody knows the full state of that."""
        room = await self.left()
        parted = self.a.send(room.room_id, "m.room.message", ALICE, {"body": "bye"})
        done = await self.receive(parted)
        self.assertEqual(done.events[0].outcome, EventOutcome.WAITING)
        await self.join(room)
        self.assertEqual(self.sql("SELECT partial FROM synrepl._room_heads"), 4)
        await self.completed(room)
        self.assertEqual(self.membership(US), "join")

    async def test_a_full_join_makes_an_abandoned_room_partial_again(self) -> None:
        room = await self.left()
        done = await self.here.join_fully(room.room_id, "a")
        self.assertTrue(done.is_partial)
        self.assertEqual(self.sql("SELECT partial FROM synrepl._room_heads"), 3)
        await self.a.outgoing.send_all()
        await self.completed(room)
        self.assertEqual(self.membership(US), "join")

    async def test_a_room_that_one_of_two_users_left_is_completed(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.here.join(room.room_id, "a", THEM)
        await self.send(room, "m.room.member", {"membership": "leave"}, US)
        await self.completed(room)
        self.assertEqual((self.membership(US), self.membership(THEM)), ("leave", "join"))

    async def test_a_user_who_is_kicked_is_out_and_the_room_let_go_when_servers_refuse(
        self,
    ) -> None:
        room = await self.shared_room()
        await self.join(room)
        kick = self.a.send(room.room_id, "m.room.member", ALICE, {"membership": "leave"}, US)
        await self.receive(kick)
        self.assertEqual(self.membership(US), "leave")
        for server in (self.a, self.b):
            server.faults.append(ServerFault("state_ids", FaultKind.FORBIDDEN))
        for _ in range(3):
            self.assertEqual(self.sql("SELECT ended_at FROM synrepl._resync_jobs"), None)
            await self.here.complete()
            self.try_again()
        await self.here.complete()
        self.assertEqual(self.sql("SELECT phase FROM synrepl._resync_jobs"), "abandoned")

    async def test_a_kick_that_was_not_allowed_is_taken_back(self) -> None:
        """Somebody who was demoted kicks us; that the demotion came before is not known."""
        room = await self.shared_room()
        mallory = "@mallory:c"
        self.a.send(room.room_id, "m.room.member", mallory, {"membership": "join"}, mallory)
        await self.a.outgoing.send_all()
        await self.join(room)
        # Mallory left before; only the older membership is cited.
        left = self.a.send(room.room_id, "m.room.member", ALICE, {"membership": "ban"}, mallory)
        await self.receive(left)
        await self.completed(room)
        self.assertEqual(self.membership(mallory), "ban")

    async def test_members_of_other_servers_are_invited_kicked_and_banned_unknown(self) -> None:
        room = self.made_room()
        levels = {"users": {ALICE: 100, US: 100}}
        self.a.send(room.room_id, "m.room.power_levels", ALICE, levels, "")
        await self.b.join(room.room_id, BOB, "a")
        await self.join(room)
        self.assertIsNone(self.membership("@u1:c"))
        await self.send(
            room,
            "m.room.member",
            {"membership": "leave"},
            "@u1:c",
            memberships=("join", "invite", "knock"),
        )
        await self.send(room, "m.room.member", {"membership": "ban"}, "@u2:d")
        await self.send(
            room, "m.room.member", {"membership": "invite"}, "@new:e", memberships=("leave",)
        )
        with self.assertRaisesRegex(EventNotAllowed, "membership of @us:here is join"):
            await self.send(
                room, "m.room.member", {"membership": "leave"}, US, memberships=("ban",)
            )
        await self.completed(room)
        found = [self.membership(each) for each in ("@u1:c", "@u2:d", "@new:e")]
        self.assertEqual(found, ["leave", "ban", "invite"])

    async def test_an_invitation_of_somebody_who_was_banned_is_healed(self) -> None:
        room = self.made_room()
        self.a.send(room.room_id, "m.room.power_levels", ALICE, {"users": {ALICE: 100, US: 50}}, "")
        self.a.send(room.room_id, "m.room.member", ALICE, {"membership": "ban"}, "@evil:e")
        await self.b.join(room.room_id, BOB, "a")
        await self.join(room)
        done = await self.send(room, "m.room.member", {"membership": "invite"}, "@evil:e")
        self.assertEqual(self.membership("@evil:e"), "invite")
        await self.sent_to_us(room)
        await self.here.complete()
        await self.check_complete(room)
        self.assertEqual(self.membership("@evil:e"), "ban")
        self.assertEqual(
            self.sql(
                "SELECT array_agg(event_id) FROM synrepl.un_partial_stated_event"
                " WHERE rejection_status_changed"
            ),
            [done.event_id],
        )

    async def test_a_room_that_is_removed_meanwhile_is_forgotten_with_all_its_rows(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        (job,) = await self.database.run(
            "claim", lambda txn: claim_jobs(txn, "one", 1, lambda txn, rooms: rooms)
        )
        left = await RoomMaintenance(self.database).forget(room.room_id, HERE, force=True)
        self.assertEqual(set(left.values()), {0})
        await RoomResync(self.here.parts, job).run()
        for table in (
            "_rooms",
            "_partial_rooms",
            "_resync_jobs",
            "_resync_events",
            "_resync_attempts",
        ):
            self.assertEqual(self.sql(f"SELECT count(*) FROM synrepl.{table}"), 0, table)

    async def test_an_event_whose_room_became_complete_is_judged_anew(self) -> None:
        """A process that thinks that the room is partial may not store a partial event."""
        room = await self.shared_room()
        await self.join(room)
        self.sql("DELETE FROM synrepl._partial_events; DELETE FROM synrepl._partial_rooms")
        self.sql(
            "UPDATE synrepl._room_events SET flags = flags & ~40; UPDATE synrepl._room_heads SET partial = 0"
        )
        done = await self.send(room, "m.room.message", {"body": "late"})
        self.assertEqual(done.outcome, EventOutcome.ACCEPTED)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._partial_events"), 0)

    async def test_one_of_two_processes_completes_a_room_and_the_other_takes_over(self) -> None:
        other = await self.start_process("two")
        workers = [self.here.worker]
        second = JoiningServer(
            self.federation,
            other.process.scheduler,
            other.process.database,
            other.persister,
            NullLog(),
            "two",
            ["one"],
        )
        workers.append(second.worker)
        room = await self.shared_room()
        await self.join(room)
        await workers[1].look()
        self.assertEqual(list(workers[1].rooms), [])  # it is assigned to the first
        (job,) = await self.database.run(
            "claim", lambda txn: claim_jobs(txn, "one", 1, lambda txn, rooms: rooms)
        )
        await workers[1].look()
        self.assertEqual(list(workers[1].rooms), [])
        self.sql(
            "UPDATE synrepl._resync_jobs SET leased_until = now() - interval '1 minute', next_try = now() - interval '1 minute'"
        )
        await workers[1].look()
        self.assertEqual(list(workers[1].rooms), [room.room_id])
        await RoomResync(self.here.parts, job).run()  # the first wakes up, and does nothing
        await second.complete()
        await self.check_complete(room)
        self.assertEqual(self.sql("SELECT claim FROM synrepl._resync_jobs"), 3)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.un_partial_stated_room"), 1)

    async def test_both_processes_race_and_the_room_becomes_complete_once(self) -> None:
        other = await self.start_process("two")
        second = JoiningServer(
            self.federation,
            other.process.scheduler,
            other.process.database,
            other.persister,
            NullLog(),
            "two",
            ["two"],
        )
        room = await self.shared_room()
        await self.join(room)
        for worker in (self.here.worker, second.worker):
            worker.wake()
        for _ in range(6):
            self.sql("UPDATE synrepl._resync_jobs SET leased_until = NULL")
            for worker in (second.worker, self.here.worker):
                await worker.look()
            await self.tick()
        await self.here.complete()
        await second.complete()
        await self.check_complete(room)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.un_partial_stated_room"), 1)

    async def test_servers_that_were_not_known_are_told_of_changed_devices(self) -> None:
        await self.database.run("tables", lambda txn: ensure_tables(txn, [DEVICE_LISTS]))
        room = await self.shared_room()
        for position, user in ((3, US), (9, THEM), (12, US)):
            self.sql(
                "INSERT INTO synrepl.device_lists (stream_id, row_no, writer, entity, is_signature, hosts_calculated)"
                " VALUES (%s, 0, 'one', %s, false, false)",
                position,
                user,
            )
        answer = await self.here.handshake(room.room_id, "a")
        known = answer._replace(servers=frozenset({"a", "c"}))
        await self.here.joins.persist(known, "a", 5)
        await self.a.outgoing.send_all()
        await self.here.complete()
        await self.check_complete(room)
        pokes = self.sql(
            "SELECT jsonb_agg(jsonb_build_array(destination, user_id) ORDER BY 1)"
            " FROM synrepl._device_list_pokes"
        )
        self.assertEqual(pokes, [["b", US], ["d", US], ["e", US]])

    async def test_workers_look_for_jobs_by_themselves(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        worker = ResyncWorker(self.here.parts, "one", ["one"])
        scheduler = self.here.parts.scheduler
        scheduler.spawn("worker", worker.run())
        while self.sql("SELECT ended_at FROM synrepl._resync_jobs") is None:
            await self.tick()
        await worker.stop()
        await self.check_complete(room)
