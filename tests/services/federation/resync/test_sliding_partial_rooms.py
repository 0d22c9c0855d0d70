"""What clients get of partial rooms by sliding sync: each list and each subscription decides for itself."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.federation.hosted_room import HostedRoom
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Event
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.sliding.required_state import RequiredState
from synrepl.services.rooms.sliding.sliding_request import RoomRule, RoomWindows, SlidingRequest
from synrepl.services.rooms.sliding.sliding_sync import SlidingAnswer
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.services.federation.joining_server import US
from tests.services.federation.resync.resync_case import ALICE, ResyncCase
from tests.services.rooms.sliding.answering_process import AnsweringProcess

LAZY = RoomRule(10, RequiredState(frozenset({("m.room.create", "")}), lazy_members=True))
MEMBERS = RoomRule(10, RequiredState(frozenset({("m.room.member", None)})))


class SlidingPartialRooms(ResyncCase):
    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.answering = AnsweringProcess(self.one.process)

    async def ask(
        self,
        pos: str | None = None,
        name: str = "c",
        subscriptions: Mapping[str, RoomRule] | None = None,
        **lists: RoomRule,
    ) -> SlidingAnswer:
        """Ask for lists of all rooms, once everything is applied."""
        newest = self.sql("SELECT coalesce(max(stream_id), 0) FROM synrepl.events")
        await self.answering.apply(PositionVector(linear=newest))
        windows = {key: RoomWindows(rule) for key, rule in lists.items()}
        request = SlidingRequest(name, pos, 0.0, windows, subscriptions or {})
        return await self.answering.ask(ClientIdentity(US, "D"), request)

    async def receive_with_members(self, room: HostedRoom, event: Event) -> None:
        """An event comes, with the memberships that it cites."""
        cited = [IncomingEvent(room.event(e), outlier=True) for e in event.auth_event_ids]
        await self.one.persister.persist(
            room.room_id, event.version.name, [*cited, IncomingEvent(event)]
        )

    async def test_who_loads_members_lazily_gets_the_room_at_once(self) -> None:
        room = await self.shared_room()
        first = await self.ask(all=LAZY)
        self.assertEqual((first.counts, first.rooms), ({"all": 0}, {}))
        await self.join(room)
        spoken = self.a.send(room.room_id, "m.room.message", "@u1:c", {"body": "hi"})
        await self.receive_with_members(room, spoken)
        joined = await self.ask(first.pos, all=LAZY)
        told = joined.rooms[room.room_id]
        self.assertEqual((joined.counts, told.is_initial), ({"all": 1}, True))
        self.assertEqual((told.joined, told.invited, told.heroes), (None, None, None))
        self.assertEqual(told.timeline[-1].event_id, spoken.event_id)
        members = {each.state_key for each in told.state if each.type == "m.room.member"}
        self.assertEqual(members, {US, "@u1:c"})  # although no state has the second
        more = self.a.send(room.room_id, "m.room.message", "@u2:d", {"body": "hi"})
        await self.receive_with_members(room, more)
        later = await self.ask(joined.pos, all=LAZY)
        told = later.rooms[room.room_id]
        self.assertEqual([each.event_id for each in told.timeline], [more.event_id])
        self.assertEqual([each.state_key for each in told.state], ["@u2:d"])
        await self.here.complete()
        complete = await self.ask(later.pos, all=LAZY)
        told = complete.rooms[room.room_id]
        self.assertEqual((told.is_initial, told.joined), (True, 11))
        self.assertEqual((await self.ask(complete.pos, all=LAZY)).rooms, {})

    async def test_who_wants_all_members_gets_it_when_it_is_complete(self) -> None:
        room = await self.shared_room()
        first = await self.ask(all=MEMBERS)
        await self.join(room)
        both = {"subscriptions": {room.room_id: MEMBERS}, "all": MEMBERS}
        partial = await self.ask(first.pos, **both)
        self.assertEqual((partial.counts, partial.rooms), ({"all": 0}, {}))
        await self.receive(self.a.send(room.room_id, "m.room.message", ALICE, {"body": "hi"}))
        partial = await self.ask(partial.pos, **both)
        self.assertEqual((partial.counts, partial.rooms), ({"all": 0}, {}))
        await self.here.complete()
        complete = await self.ask(partial.pos, **both)
        told = complete.rooms[room.room_id]
        self.assertEqual((complete.counts, told.is_initial, told.joined), ({"all": 1}, True, 11))
        self.assertEqual(len(told.state), 11)
        self.assertEqual(len(told.timeline), 2)

    async def test_each_list_and_each_subscription_decides_for_itself(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        answer = await self.ask(lazy=LAZY, all=MEMBERS, subscriptions={room.room_id: MEMBERS})
        self.assertEqual(answer.counts, {"lazy": 1, "all": 0})
        told = answer.rooms[room.room_id]
        self.assertEqual(list(told.lists), ["lazy"])
        self.assertEqual({each.state_key for each in told.state}, {"", US})
        await self.here.complete()
        answer = await self.ask(
            answer.pos, lazy=LAZY, all=MEMBERS, subscriptions={room.room_id: MEMBERS}
        )
        told = answer.rooms[room.room_id]
        self.assertEqual(answer.counts, {"lazy": 1, "all": 1})
        self.assertEqual(list(told.lists), ["lazy", "all"])
        self.assertEqual(len(told.state), 12)

    async def test_a_room_that_becomes_partial_again_is_told_from_where_its_client_is(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.here.complete()
        whole = await self.ask(all=MEMBERS)
        self.assertIn(room.room_id, whole.rooms)
        self.a.send(room.room_id, "m.room.message", ALICE, {"body": "unheard"})
        await self.here.join(room.room_id, "a", "@them:here")
        partial = await self.ask(whole.pos, all=MEMBERS)
        self.assertEqual((partial.counts, partial.rooms), ({"all": 0}, {}))
        await self.a.outgoing.send_all()
        await self.here.complete()
        told = (await self.ask(partial.pos, all=MEMBERS)).rooms[room.room_id]
        self.assertTrue(told.is_initial)
        self.assertEqual(len(told.state), 12)

    async def test_a_process_that_has_not_heard_of_the_completion_tells_nothing_yet(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        before = await self.ask(all=MEMBERS)
        await self.here.complete()
        wanted = {"all": RoomWindows(MEMBERS)}
        identity = ClientIdentity(US, "D")
        behind = await self.answering.ask(identity, SlidingRequest("d", lists=wanted))
        self.assertEqual((behind.counts, behind.rooms), ({"all": 0}, {}))
        self.assertIn(room.room_id, (await self.ask(behind.pos, "d", all=MEMBERS)).rooms)
        self.assertIn(room.room_id, (await self.ask(before.pos, all=MEMBERS)).rooms)
