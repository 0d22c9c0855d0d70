"""Events whose parents are missing: fetched from other servers, whatever these answer."""

from __future__ import annotations

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.pure_server import PureServer
from synrepl.rooms import Event
from synrepl.storage.federation.failed_fetches import FIRST_DELAY_S
from tests.services.federation.inbound_case import (
    BOB,
    CAROL,
    OTHER,
    REMOTE,
    InboundCase,
)


class Gaps(InboundCase):
    """A room of which this server has missed a part."""

    def say_many(self, room: HostedRoom, count: int) -> list[Event]:
        """Messages that follow one another."""
        return [self.say(room, f"{number}") for number in range(count)]

    async def test_missing_events_are_fetched_in_between(self) -> None:
        room = await self.shared_room()
        sent = self.say_many(room, 30)
        answer = await self.here.receive(sent[-1:])
        self.assertEqual(answer, {sent[-1].event_id: {}})
        await self.settled()
        self.assertEqual([self.stored(each) for each in sent], ["accepted"] * 30)
        await self.check_equal(room.room, orders=False)
        self.assertEqual(len(self.federation.asked("get_missing_events")), 2)
        self.assertEqual(self.federation.asked("state_ids"), [])

    async def test_a_long_gap_ends_with_the_state_of_another_server(self) -> None:
        room = await self.shared_room()
        self.remote.send(room.room_id, "m.room.topic", BOB, {"topic": "missed"}, "")
        sent = self.say_many(room, 120)
        await self.here.receive(sent[-1:])
        await self.settled()
        self.assertEqual(self.stored(sent[-1]), "accepted")
        self.assertEqual(self.stored(sent[0]), None)
        self.assertEqual(len(self.federation.asked("get_missing_events")), 4)
        self.assertEqual(len(self.federation.asked("state_ids")), 1)
        topic = await self.read(
            lambda txn: txn.execute(
                "SELECT count(*) FROM synrepl._current_state JOIN synrepl._room_keys k"
                " USING (room_no, slot) WHERE k.type = 'm.room.topic'"
            ).fetchone()[0]
        )
        self.assertEqual(topic, 1)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._waiting_events"), 0)

    async def test_what_follows_joins_both_sides_of_a_gap(self) -> None:
        room = await self.shared_room()
        sent = self.say_many(room, 200)
        await self.here.receive(sent[-1:])
        await self.settled()
        for event in reversed(sent[:-1]):
            if self.stored(event) is None:
                await self.here.receive([event])
                await self.settled()
        await self.here.receive([self.say(room)])
        await self.settled()
        await self.check_equal(room.room, orders=False)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._backward_extremities"), 0)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._forward_extremities"), 1)

    async def test_missing_auth_events_are_fetched(self) -> None:
        room = await self.shared_room()
        fork = sorted(room.room.forward_extremities)
        join = self.remote.send(room.room_id, "m.room.member", CAROL, {"membership": "join"}, CAROL)
        draft = {"msgtype": "m.text", "body": "cites a join that it does not follow"}
        message = self.say(room, sender=CAROL)
        builder = self.remote.builder("10", OTHER)
        cited = [room.event(each) for each in message.auth_event_ids]
        odd = builder.assemble(
            builder_draft(message, draft), room.room_id, [room.event(e) for e in fork], cited
        )
        room.room.receive(odd)
        await self.here.receive([odd])
        await self.settled()
        self.assertEqual(len(self.federation.asked("event_auth")), 1)
        self.assertEqual([self.stored(join), self.stored(odd)], ["outlier", "rejected"])

    async def test_the_next_server_is_asked_when_one_fails(self) -> None:
        room = await self.shared_room()
        other = await self.joined_by_other(room)
        sent = self.say_many(room, 3)
        await self.remote.outgoing.send_all()
        self.federation.stop(REMOTE)
        await self.here.receive(sent[-1:])
        await self.settled()
        self.assertIn(sent[0].event_id, other)
        self.assertEqual([self.stored(each) for each in sent], ["accepted"] * 3)

    async def test_what_nobody_gives_is_asked_for_again_later_and_not_before(self) -> None:
        room = await self.shared_room()
        sent = self.say_many(room, 2)
        self.remote.faults = [ServerFault("*", FaultKind.NOT_FOUND)]
        await self.here.receive(sent[-1:])
        await self.settled()
        self.assertEqual(self.stored(sent[-1]), "waiting")
        due = "SELECT extract(epoch FROM next_try - now()) FROM synrepl._failed_fetches"
        self.assertLess(abs(float(self.sql(due)) - FIRST_DELAY_S), 20)
        asked = len(self.federation.requests)
        await self.here.sweeper.look_for_gaps()
        await self.here.receive([self.say(room)])
        await self.settled()
        self.assertEqual(len(self.federation.requests), asked)
        self.sql("UPDATE synrepl._failed_fetches SET next_try = now()")
        await self.here.sweeper.look_for_gaps()
        await self.settled()
        self.assertEqual(self.sql("SELECT failures FROM synrepl._failed_fetches"), 2)
        self.assertLess(abs(float(self.sql(due)) - 2 * FIRST_DELAY_S), 40)
        self.remote.faults = []
        self.sql("UPDATE synrepl._failed_fetches SET next_try = now()")
        await self.here.sweeper.look_for_gaps()
        await self.settled()
        await self.check_equal(room.room, orders=False)

    async def test_another_process_goes_on_with_a_gap(self) -> None:
        room = await self.shared_room()
        sent = self.say_many(room, 3)
        self.federation.stop(REMOTE)
        await self.here.receive(sent[-1:])
        await self.settled()
        self.sql("DELETE FROM synrepl._failed_fetches")
        self.federation.start(REMOTE)
        two = self.inbound(await self.start_process("two"), ("two",))
        await two.sweeper.look_for_gaps()
        await self.settled(two)
        await self.check_equal(room.room, orders=False)

    async def test_events_that_are_staged_are_not_fetched(self) -> None:
        room = await self.shared_room()
        sent = self.say_many(room, 2)
        two = self.inbound(await self.start_process("two"), ("one",))
        await two.receive(sent[:1])
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._staged_events"), 1)
        await self.here.receive(sent[1:])
        await self.settled()
        self.assertEqual(self.federation.requests, [])
        await self.here.sweeper.wake_staged()
        await self.settled()
        await self.check_equal(room.room, orders=False)

    async def joined_by_other(self, room: HostedRoom) -> HostedRoom:
        """Another server that Carol is on joins the room, and this server hears of it."""
        other = PureServer(OTHER, self.federation)
        await other.join(room.room_id, CAROL, REMOTE)
        await self.store(room)
        self.federation.requests.clear()
        return other.rooms[room.room_id]


def builder_draft(event: Event, content: dict[str, str]):  # type: ignore[no-untyped-def]
    """A message like another one."""
    from synrepl.rooms import EventDraft

    return EventDraft(event.type, event.sender, content, event.origin_server_ts)
