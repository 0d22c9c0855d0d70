"""Servers that lie or fail when missing events are asked for: the next one is asked, and nothing wrong is believed."""

from __future__ import annotations

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.pure_server import PureServer
from synrepl.rooms import Event
from synrepl.services.federation.inbound import gap_round
from tests.adapters.raw_http_client import reactor
from tests.services.federation.inbound_case import BOB, CAROL, OTHER, REMOTE, InboundCase

THIRD = "third.test"
DAN = f"@dan:{THIRD}"

#: Faults of answers with events, those that a server has by itself.
_OF_EVENTS = (
    FaultKind.FORBIDDEN,
    FaultKind.NOT_FOUND,
    FaultKind.BROKEN,
    FaultKind.TOO_LARGE,
    FaultKind.TRUNCATED,
    FaultKind.GARBAGE,
    FaultKind.NO_OBJECT,
    FaultKind.NESTED,
    FaultKind.EMPTY,
    FaultKind.UNSIGNED,
    FaultKind.WRONGLY_SIGNED,
    FaultKind.HALF_THE_EVENTS,
)

#: Faults of states.
_OF_STATES = (
    *_OF_EVENTS[:9],
    FaultKind.NO_CREATE,
    FaultKind.NO_POWER_LEVELS,
    FaultKind.NO_JOIN_RULES,
    FaultKind.NO_MEMBERS,
    FaultKind.UNKNOWN_EVENTS,
    FaultKind.CONTRADICTORY,
    FaultKind.OTHER_ROOM,
)


class GapLiars(InboundCase):
    """A room of three other servers, of which this one has missed a part."""

    timeout = 600

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.other = PureServer(OTHER, self.federation)
        self.third = PureServer(THIRD, self.federation)

    async def room_of_all(self, name: str) -> HostedRoom:
        """A room with users of all servers."""
        room = await self.shared_room(name=name)
        # A key that has two events, for those that contradict themselves.
        for topic in ("one", "two"):
            content = {"membership": "join", "displayname": topic}
            self.remote.send(room.room_id, "m.room.member", BOB, content, BOB)
        await self.other.join(room.room_id, CAROL, REMOTE)
        await self.third.join(room.room_id, DAN, REMOTE)
        await self.store(room)
        self.remote.outgoing.queues.clear()
        return room

    async def missed(self, room: HostedRoom, sender: str, count: int = 3) -> list[Event]:
        """Messages of a user that the other servers have."""
        sent = [self.say(room, f"{number}", sender=sender) for number in range(count)]
        await self.remote.outgoing.send_all()
        return sent

    def healed(self) -> None:
        """No server does anything wrong any more."""
        for each in (self.remote, self.other, self.third):
            each.faults = []
        self.sql("DELETE FROM synrepl._failed_fetches")

    async def test_missing_events_come_from_another_server(self) -> None:
        for kind in _OF_EVENTS:
            room = await self.room_of_all(f"events {kind.name}")
            sent = await self.missed(room, BOB)
            self.remote.faults = [ServerFault("get_missing_events", kind)]
            await self.here.receive(sent[-1:])
            await self.settled()
            self.assertEqual([self.stored(each) for each in sent], ["accepted"] * 3, kind)
            self.assert_same_state(room)
            self.healed()

    async def test_events_with_another_content_than_was_hashed_are_redacted(self) -> None:
        room = await self.room_of_all("hashes")
        sent = await self.missed(room, BOB)
        self.remote.faults = [ServerFault("get_missing_events", FaultKind.WRONG_HASH)]
        await self.here.receive(sent[-1:])
        await self.settled()
        self.assertEqual([self.stored(each) for each in sent], ["accepted"] * 3)

    async def test_states_of_a_server_that_lies_about_others_are_not_believed(self) -> None:
        await self.room_of_all("another room")
        for kind in _OF_STATES:
            room = await self.room_of_all(f"states {kind.name}")
            sent = await self.missed(room, CAROL)
            nothing = ServerFault("get_missing_events", FaultKind.EMPTY)
            self.third.faults = [nothing]
            self.other.faults = [nothing, *self.of_states(FaultKind.NOT_FOUND)]
            self.remote.faults = [nothing, *self.of_states(kind)]
            await self.here.receive(sent[-1:])
            await self.settled()
            self.assertEqual(self.stored(sent[-1]), "accepted", kind)
            self.assert_same_state(room)
            self.healed()

    def of_states(self, kind: FaultKind) -> list[ServerFault]:
        """A fault of all endpoints that say what a state is."""
        return [ServerFault(each, kind) for each in ("state_ids", "state")]

    async def test_nobody_speaks_who_was_banned_whatever_a_server_reports(self) -> None:
        room = await self.room_of_all("banned")
        before = sorted(room.room.forward_extremities)
        ban = self.remote.send(room.room_id, "m.room.member", BOB, {"membership": "ban"}, CAROL)
        await self.here.receive([ban])
        between = self.say(room, sender=CAROL, follows=before)
        late = self.say(room, sender=CAROL, follows=[between.event_id])
        nothing = ServerFault("get_missing_events", FaultKind.EMPTY)
        self.remote.faults = [nothing]
        await self.here.receive([late])
        await self.settled()
        self.assertEqual(len(self.federation.asked("state_ids", REMOTE)), 1)
        self.assertEqual(self.stored(late), "soft-failed")

    async def test_an_endless_chain_of_parents_costs_a_bounded_number_of_requests(self) -> None:
        self.patch(gap_round, "EVENTS_BETWEEN", 2)
        room = await self.room_of_all("endless")
        sent = await self.missed(room, BOB, 60)
        for each in (self.remote, self.other, self.third):
            each.faults = self.of_states(FaultKind.NOT_FOUND)
        self.federation.requests.clear()
        await self.here.receive(sent[-1:])
        await self.settled()
        self.assertEqual(self.stored(sent[-1]), "waiting")
        self.assertLess(len(self.federation.requests), 40)

    async def test_a_slow_server_does_not_keep_other_rooms_waiting(self) -> None:
        slow, quick = await self.room_of_all("slow"), await self.shared_room(name="quick")
        stuck = await self.missed(slow, BOB)
        silent = ServerFault("get_missing_events", FaultKind.NO_ANSWER, rooms=[slow.room_id])
        for each in (self.remote, self.other, self.third):
            each.faults = [silent]
        await self.here.receive(stuck[-1:])
        await self.until(lambda: bool(self.federation.asked("get_missing_events", REMOTE)))
        sent = [self.say(quick, f"{number}") for number in range(3)]
        await self.here.receive(sent[-1:])
        await self.until(lambda: self.stored(sent[-1]) == "accepted")
        await self.until(lambda: self.here.gaps.active == 1)
        self.assertEqual(self.stored(stuck[-1]), "waiting")
        for call in reactor.getDelayedCalls():  # the request that is never answered
            if "expire" in str(call.func):
                call.cancel()
