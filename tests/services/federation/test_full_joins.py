"""Rooms that are joined with their whole state: stored in batches, seen when the join is there, or not at all."""

from __future__ import annotations

from twisted.internet.defer import CancelledError

from simulator.federation.faults import FaultKind, ServerFault
from synrepl.services.federation.full_joins import AnsweredEvents
from synrepl.storage.rooms.partial.full_joins import JoinUnderWay, begin_full_join
from tests.services.federation.joining_server import US
from tests.services.federation.resync.resync_case import ALICE, ResyncCase


class FullyJoinedRooms(ResyncCase):
    async def test_a_room_is_as_its_server_has_it(self) -> None:
        for version in ("1", "6", "10", "12"):
            room = self.made_room(version, members=30)
            done = await self.here.join_fully(room.room_id, "a")
            self.assertFalse(done.is_partial)
            self.a.send(room.room_id, "m.room.topic", ALICE, {"topic": "later"}, "")
            await self.sent_to_us(room)
            whole = await self.whole_room(room)
            await self.check_equal(whole, version, orders=False)
            self.assertEqual(whole.current_state(), room.room.current_state())
            await self.check_nothing_is_wrong()
            for table in ("_room_joins", "_listed_events", "_fetched_events", "_partial_rooms"):
                self.assertEqual(self.sql(f"SELECT count(*) FROM synrepl.{table}"), 0, table)
            await self.forget_all()

    async def test_what_has_its_causes_is_stored_as_it_comes(self) -> None:
        room = self.made_room("10", members=30)
        came: list[str] = []

        def look(part: AnsweredEvents) -> None:
            came.extend(each.event_id for each in part.state)
            here = set(self.sql("SELECT array_agg(event_id) FROM synrepl._room_events") or ())
            cites = {each.event_id: {*each.auth_event_ids} for each in part.state}
            for event_id, cited in cites.items():
                self.assertEqual(event_id in here, cited <= here, event_id)

        await self.here.join_fully(room.room_id, "a", after=look)
        self.assertEqual(len(came), len(room.room.current_state()) - 1)

    async def forget_all(self) -> None:
        await self.empty()
        self.a.rooms.clear()
        self.a.faults.clear()

    async def test_nothing_is_left_of_an_answer_that_is_bad(self) -> None:
        for kind in (
            FaultKind.NO_CREATE,
            FaultKind.NO_POWER_LEVELS,
            FaultKind.NO_MEMBERS,
            FaultKind.CONTRADICTORY,
            FaultKind.OTHER_ROOM,
            FaultKind.UNSIGNED,
            FaultKind.NO_AUTH_CHAIN,
            FaultKind.HALF_THE_EVENTS,
            FaultKind.EMPTY,
        ):
            room = self.made_room()
            self.a.create_room("10", ALICE, name="other")
            for membership in ("join", "leave"):
                content = {"membership": membership}
                self.a.send(room.room_id, "m.room.member", "@z:c", content, "@z:c")
            self.a.faults.append(ServerFault("send_join", kind))
            try:
                await self.here.join_fully(room.room_id, "a")
            except Exception as error:
                self.assertIn(type(error).__name__, ("IncompleteAnswer", "OtherRoom"), kind)
            else:
                self.fail(f"joined, with {kind}")
            for table in ("_rooms", "_room_events", "_room_joins", "_room_keys", "_state_groups"):
                self.assertEqual(
                    self.sql(f"SELECT count(*) FROM synrepl.{table}"), 0, (kind, table)
                )
            await self.forget_all()

    async def test_an_interrupted_join_is_removed_and_can_be_made_again(self) -> None:
        room = self.made_room()
        room_id = room.room_id
        await self.assertFailure(
            self.deferred(self.here.join_fully(room_id, "a", ends_within=True)), CancelledError
        )
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._room_joins"), 1)
        await self.assertFailure(self.deferred(self.here.join_fully(room_id, "a")), JoinUnderWay)
        await self.here.full_joins.remove_unfinished()
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._room_joins"), 1)
        self.sql("UPDATE synrepl._room_joins SET leased_until = now()")
        await self.here.full_joins.remove_unfinished()
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._rooms"), 0)
        await self.here.join_fully(room_id, "a", US)
        self.assertEqual(
            self.sql("SELECT count(*) FROM synrepl._current_state"),
            len(room.room.current_state()),
        )

    async def test_one_process_at_a_time_joins_a_room(self) -> None:
        await self.database.run("begin", lambda txn: begin_full_join(txn, "!a:b", "10", "other"))
        with self.assertRaisesRegex(JoinUnderWay, "other"):
            await self.database.run("begin", lambda txn: begin_full_join(txn, "!a:b", "10", "we"))
