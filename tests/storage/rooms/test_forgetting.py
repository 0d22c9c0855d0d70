"""Rooms are removed with all their rows, and users' events are erased."""

from __future__ import annotations

from synrepl.rooms import Room, Sight, Viewer, parse_event, redact
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.maintenance.erase import NotAUser
from synrepl.storage.rooms.maintenance.erased_form import erased_form
from synrepl.storage.rooms.maintenance.forget import LocalMembers, remove_versions
from synrepl.storage.rooms.reading.event_access import read_events
from synrepl.storage.rooms.reading.explaining_events import explain_visibility
from synrepl.storage.rooms.tables.events import EventFlags, events_by_id, parsed_events, raw_json
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from synrepl.storage.rooms.tables.numbers import UnknownRoom, find_room
from synrepl.storage.rooms.visibility.event_visibility import seen_by_user
from tests.rooms.dags import Dag, dag, dag_names
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.blocking_store import TABLES
from tests.storage.rooms.kept_rooms import Killed, KilledDatabase, MaintainedCase


class Forgetting(MaintainedCase):
    """Rooms that are removed."""

    def rows(self) -> dict[str, int]:
        connection = self.connect()
        return {
            table: self.sql(f"SELECT count(*) FROM synrepl.{table}", on=connection)
            for table in TABLES
        }

    async def stored(self, number: int = 0) -> tuple[Dag, Room]:
        room_dag = dag(dag_names(60)[number])
        await self.persist(room_dag)
        return room_dag, self.in_memory(room_dag)

    async def test_nothing_is_left_of_a_room_and_other_rooms_stay(self) -> None:
        _, other = await self.stored(0)
        before = self.rows()
        room_dag, room = await self.stored(1)
        orphan = room_dag.events[-1]
        left = await self.maintenance.forget(room.room_id or "", "nobody.example")
        self.assertEqual(set(left.values()), {0})
        self.assertEqual(self.rows(), before)
        await self.check_equal(other)
        with self.assertRaises(UnknownRoom):
            await self.maintenance.forget(room.room_id or "", "nobody.example")
        # It may come again, also in the process that had it.
        again = IncomingEvent(orphan, room_dag.soft_failures)
        done = await self.one.persist(orphan.room_id, room_dag.version, [again])
        self.assertEqual(done.events[0].outcome, EventOutcome.WAITING)
        await self.persist(room_dag)
        await self.check_equal(room)

    async def test_a_process_that_remembers_a_room_that_came_again_reads_it_anew(self) -> None:
        small = SmallRoom("10")
        room_id = small.create.room_id
        events = [*small.base, small.carol]
        first = await self.one.persist(room_id, small.version, events)
        await self.maintenance.forget(room_id, "nobody.example", force=True)
        two = await self.start_process("two")
        again = await two.persist(room_id, small.version, events)
        # As old as the one that it remembers, so only its number differs.
        self.assertNotEqual(again.room_no, first.room_no)
        self.assertEqual(again.revision, first.revision)
        newest = small.topic(small.carol)
        await self.one.persist(room_id, small.version, [newest])
        room = Room(small.version)
        for each in (*events, newest):
            room.receive(each)
        await self.check_equal(room)

    async def test_a_room_with_local_members_is_not_removed_unless_it_is_forced(self) -> None:
        _, room = await self.stored(0)
        members = [
            key[1]
            for key, event_id in room.current_state().items()
            if key[0] == "m.room.member" and room[event_id].event.membership == "join"
        ]
        server = members[0].partition(":")[2]
        with self.assertRaisesRegex(LocalMembers, server):
            await self.maintenance.forget(room.room_id or "", server)
        await self.check_equal(room)
        await self.maintenance.forget(room.room_id or "", server, force=True)
        self.assertEqual(set(self.rows().values()), {0})

    async def test_a_room_that_the_local_members_left_is_removed_and_caches_hear_of_it(
        self,
    ) -> None:
        small = SmallRoom("10")
        cites = [small.create, small.rules]
        joined = small.member("@dave:d", "join", [small.rules], cites)
        left = small.member("@dave:d", "leave", [joined], [small.create, joined])
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, [*small.base, joined, left])
        await self.maintenance.forget(room_id, "d")
        heard = "SELECT keys->>0 FROM synrepl.caches WHERE cache_func = 'dr_cache_fake'"
        self.assertEqual(self.sql(heard), room_id)

    async def test_lines_go_after_the_last_of_their_versions(self) -> None:
        await self.stored(0)
        room_no = self.sql("SELECT room_no FROM synrepl._rooms")
        versions, lines = self.rows()["_state_line"], self.rows()["_state_lines"]
        removed = 0
        while rows := await self.read(lambda txn: remove_versions(txn, room_no, versions // 3)):
            removed += rows
        self.assertEqual(removed, versions + lines)
        self.assertEqual(self.rows()["_state_line"], 0)

    async def test_a_removal_that_is_killed_anywhere_is_gone_on_with(self) -> None:
        _, room = await self.stored(2)
        room_id = room.room_id or ""

        async def check() -> None:
            if await self.read(lambda txn: find_room(txn, room_id)) is not None:
                await self.check_equal(room)

        killed = await self.kill_everywhere(lambda to: to.forget(room_id, "nobody.example"), check)
        self.assertGreater(len(killed), 10)
        self.assertEqual(set(self.rows().values()), {0})


class Erasing(MaintainedCase):
    """Users whose events are erased."""

    async def test_events_of_a_user_are_kept_in_the_redacted_form(self) -> None:
        for name in dag_names(60):
            room_dag = dag(name)
            await self.persist(room_dag)
            room = self.in_memory(room_dag)
            user = room_dag.events[0].sender
            sent = [each for each in room if each.event.sender == user]
            await self.maintenance.erase_user(user)
            self.assertEqual(await self.maintenance.erase_user(user), 0)
            ids = [each.event.event_id for each in room]
            rows = await self.read(lambda txn, ids=ids: events_by_id(txn, ids))  # type: ignore[misc]
            stored = await self.read(
                lambda txn, rows=rows: raw_json(txn, rows.values())  # type: ignore[misc]
            )
            version = room_dag.version
            for each in room:
                event_id, raw = each.event.event_id, stored[each.event.event_id]
                is_erased = bool(rows[event_id].flags & EventFlags.ERASED)
                self.assertEqual(is_erased, each in sent, event_id)
                if is_erased:
                    self.assertEqual(raw, erased_form(each.event), event_id)
                    fields = redact(parse_event(raw, version).fields, version)
                    self.assertEqual(fields, redact(each.event.fields, version), event_id)
                else:
                    self.assertEqual(raw, each.event.raw)
            # The IDs are what they were, so the events are served, and the room goes on.
            await self.read(
                lambda txn, rows=rows, version=version: parsed_events(  # type: ignore[misc]
                    txn, version, list(rows.values())
                )
            )
            found = await self.verified(room.room_id or "")
            self.assertEqual(found, [], name)
            await self.empty()

    async def test_an_erasure_that_is_killed_anywhere_is_gone_on_with(self) -> None:
        room_dag = dag(dag_names(60)[0])
        await self.persist(room_dag)
        room_id, user = room_dag.events[0].room_id, room_dag.events[0].sender

        async def check() -> None:
            self.assertEqual(await self.verified(room_id), [])

        killed = await self.kill_everywhere(lambda to: to.erase_user(user), check)
        self.assertEqual(killed, {"record erased users", "erase events"})
        self.assertEqual(
            self.sql(
                "SELECT count(*) FROM synrepl._room_events WHERE sender = %s AND flags & 16 = 0",
                user,
            ),
            0,
        )

    async def test_what_others_are_authorised_by_stays(self) -> None:
        small = SmallRoom("10", {"@alice:a": 100, "@carol:a": 50})
        levels = small.event(
            "m.room.power_levels",
            {"users": {"@alice:a": 100, "@carol:a": 50}, "invite": 60, "note": "private"},
            [small.carol],
            [small.create, small.alice, small.levels],
            key="",
        )
        message = small.message(levels)
        redaction = small.event(
            "m.room.redaction",
            {"reason": "private"},
            [levels],
            [small.create, small.alice, levels],
            redacts=message.event_id,
        )
        room_id = small.create.room_id
        made = [*small.base, small.carol, levels, redaction]
        await self.one.persist(room_id, small.version, made)
        await self.maintenance.erase_user("@alice:a")
        self.assertEqual(await self.verified(room_id), [])
        kept = await self.read(
            lambda txn: raw_json(txn, events_by_id(txn, [each.event_id for each in made]).values())
        )
        self.assertNotIn(b"private", b"".join(kept.values()))
        self.one.forget()
        invites = [
            small.event(
                "m.room.member",
                {"membership": "invite"},
                [redaction],
                [small.create, levels, sender, small.rules],
                sender.sender,
                "@dave:c",
            )
            for sender in (small.carol, small.alice)
        ]
        done = await self.one.persist(room_id, small.version, [*invites, message])
        self.assertEqual(
            [each.outcome for each in done.events[:2]],
            [EventOutcome.REJECTED, EventOutcome.ACCEPTED],
        )
        rows = await self.read(lambda txn: events_by_id(txn, [message.event_id]))
        self.assertIsNotNone(rows[message.event_id].redacted_by)

    async def test_others_see_the_redacted_form_from_the_first_moment_on(self) -> None:
        small = SmallRoom("10")
        cites = [small.create, small.alice, small.levels]
        message = small.event("m.room.message", {"body": "private"}, [small.carol], cites)
        made = [*small.base, small.carol, message]
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, made)
        user, viewer = message.sender, Viewer("@stranger:z")
        killed = KilledDatabase(self.database, 1)
        with self.assertRaises(Killed):
            await RoomMaintenance(killed).erase_user(user)
        found = await self.read(lambda txn: seen_by_user(txn, room_id, viewer, [message.event_id]))
        self.assertIs(found[message.event_id].verdict.sight, Sight.REDACTED)
        explained = await self.read(lambda txn: explain_visibility(txn, message.event_id, viewer))
        self.assertEqual(explained.verdict, found[message.event_id].verdict)
        copies = await self.read(lambda txn: read_events(txn, [message.event_id]))
        self.assertNotEqual(copies[message.event_id].json, message.raw)
        whole = await self.read(lambda txn: read_events(txn, [message.event_id], as_it_came=True))
        self.assertEqual(whole[message.event_id].json, message.raw)

    async def test_refuses_what_is_no_user_id(self) -> None:
        for text in "alice", "@alice", "@a\0b:c", "":
            with self.assertRaises(NotAUser):
                await self.maintenance.erase_user(text)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._erased_users"), 0)

    async def test_waiting_events_of_a_user_are_dropped(self) -> None:
        room_dag = dag(dag_names(60)[0])
        late = room_dag.events[-1]
        await self.one.persist(late.room_id, room_dag.version, [IncomingEvent(late)])
        await self.maintenance.erase_user("@somebody:else.example")
        self.assertEqual(self.sql("SELECT waiting FROM synrepl._room_heads"), 1)
        await self.maintenance.erase_user(late.sender)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._waiting_events"), 0)
        self.assertEqual(self.sql("SELECT waiting FROM synrepl._room_heads"), 0)
