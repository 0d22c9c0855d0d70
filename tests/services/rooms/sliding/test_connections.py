"""Connections of sliding sync at processes that differ in what they have applied, know, and remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.positions.vector import PositionVector
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.sliding import sliding_plan
from synrepl.services.rooms.sliding.required_state import RequiredState
from synrepl.services.rooms.sliding.sliding_pos import SlidingPos, UnknownPosition
from synrepl.services.rooms.sliding.sliding_request import RoomRule, RoomWindows, SlidingRequest
from synrepl.services.rooms.sliding.sliding_sync import SlidingAnswer
from tests.services.rooms.sliding.answering_process import SERVER, AnsweringProcess
from tests.services.rooms.sliding.talking_room import ALICE, BOB, CAROL, TalkingRoom
from tests.storage.rooms.store_case import StoreCase

NOTHING = RequiredState()
DEVICE = ClientIdentity(CAROL, "D")


def windows(last: int | None = None, limit: int = 10) -> Mapping[str, RoomWindows]:
    """A list of the first rooms."""
    ranges = None if last is None else ((0, last),)
    return {"all": RoomWindows(RoomRule(limit, NOTHING), ranges)}


class ConnectionsCase(StoreCase):
    """Two processes that persist, and some that answer."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.two = await self.start_process("two")
        self.answering = AnsweringProcess(self.one.process)

    async def persist(self, room: TalkingRoom, process: Any = None) -> int:
        """Persist what is new in a room; the last stream ID."""
        await (process or self.one).persist(room.room_id, room.version, room.new())
        newest = "SELECT max(stream_id) FROM synrepl.events"
        return int(await self.read(lambda txn: txn.execute(newest).fetchone()[0]))

    async def apply(
        self, linear: int, process: AnsweringProcess | None = None, **ahead: int
    ) -> None:
        """A process applies the streams up to there."""
        await (process or self.answering).apply(PositionVector(ahead, linear))

    async def slide(
        self,
        pos: str | None = None,
        lists: Mapping[str, RoomWindows] | None = None,
        subscriptions: Sequence[str] = (),
        process: AnsweringProcess | None = None,
        identity: ClientIdentity = DEVICE,
        limit: int = 10,
    ) -> SlidingAnswer:
        """Ask once."""
        rooms = {each: RoomRule(limit, NOTHING) for each in subscriptions}
        request = SlidingRequest("c", pos, 0.0, lists or {}, rooms)
        return await (process or self.answering).ask(identity, request)

    def bodies(self, answer: SlidingAnswer, room: TalkingRoom) -> list[str]:
        """The messages that an answer has of a room."""
        result = answer.rooms.get(room.room_id)
        told = [each.event_id for each in (result.timeline if result else ())]
        found = {each.event_id: each.fields["content"].get("body") for each in room.events}
        return [found[each] for each in told if found[each] is not None]


class LaggingProcesses(ConnectionsCase):
    """A process may be behind in a writer that the client's position covers."""

    async def test_a_room_that_comes_into_the_window_there_is_told_up_to_the_position(self) -> None:
        a, b = TalkingRoom("a", CAROL), TalkingRoom("b", CAROL)
        await self.persist(a)
        start = await self.persist(b, self.two)
        behind = AnsweringProcess(self.one.process)
        for each in (self.answering, behind):
            await self.apply(start, each)
        first = await self.slide(subscriptions=[a.room_id])
        b.say("of two")
        await self.persist(b, self.two)
        a.say("of one")
        last = await self.persist(a)
        await self.apply(last)
        second = await self.slide(first.pos, subscriptions=[a.room_id])
        self.assertEqual(self.bodies(second, a), ["of one"])
        await self.apply(start, behind, one=last)
        self.assertTrue(behind.may_answer(SlidingPos.parse(second.pos, SERVER).token))
        third = await self.slide(second.pos, windows(), process=behind)
        self.assertEqual(self.bodies(third, b), ["of two"])
        fourth = await self.slide(third.pos, windows())
        self.assertEqual(fourth.rooms, {})

    async def test_a_leave_that_the_client_knows_is_not_undone_there(self) -> None:
        a, b = TalkingRoom("a", CAROL), TalkingRoom("b", CAROL)
        await self.persist(a)
        start = await self.persist(b, self.two)
        behind = AnsweringProcess(self.one.process)
        for each in (self.answering, behind):
            await self.apply(start, each)
        # The process behind knows its list of rooms from before the leave.
        await self.slide(None, windows(), process=behind, identity=ClientIdentity(CAROL, "E"))
        first = await self.slide(lists=windows(limit=1))
        b.put("m.room.member", {"membership": "leave"}, CAROL, CAROL)
        b.put("m.room.topic", {"topic": "about Carol"}, ALICE)
        await self.persist(b, self.two)
        a.say("x")
        last = await self.persist(a)
        await self.apply(last)
        second = await self.slide(first.pos, windows(limit=1))
        self.assertEqual(second.rooms[b.room_id].membership, "leave")
        await self.apply(start, behind, one=last)
        wanted = {"all": RoomWindows(RoomRule(20, RequiredState(frozenset({(None, None)}))))}
        third = await self.slide(second.pos, wanted, process=behind)
        result = third.rooms[b.room_id]
        self.assertEqual(result.membership, "leave")
        types = {each.type for each in (*result.state, *result.timeline)}
        self.assertIn("m.room.create", types)
        self.assertNotIn("m.room.topic", types)


class Bounds(ConnectionsCase):
    """What a connection may cost."""

    async def test_an_answer_has_a_number_of_rooms_and_the_next_one_the_others(self) -> None:
        self.patch(sliding_plan, "MAX_TOLD", 2)
        rooms = [TalkingRoom(f"r{n}", CAROL) for n in range(5)]
        for each in rooms:
            last = await self.persist(each)
        await self.apply(last)
        told: list[str] = []
        answer = await self.slide(lists=windows())
        self.assertEqual(answer.counts, {"all": 5})
        while answer.rooms:
            self.assertLessEqual(len(answer.rooms), 2)
            self.assertTrue(all(each.is_initial for each in answer.rooms.values()))
            told += answer.rooms
            answer = await self.slide(answer.pos, windows())
        self.assertEqual(sorted(told), sorted(each.room_id for each in rooms))
        # The same of news: what is left is told next, from where the client is.
        for each in rooms:
            each.say("new")
            last = await self.persist(each)
        await self.apply(last)
        seen: list[str] = []
        while (answer := await self.slide(answer.pos, windows())).rooms:
            for room in rooms:
                seen += [room.room_id for body in self.bodies(answer, room) if body == "new"]
            self.assertFalse(any(each.is_initial for each in answer.rooms.values()))
        self.assertEqual(sorted(seen), sorted(each.room_id for each in rooms))

    async def test_an_answer_has_a_number_of_events(self) -> None:
        self.patch(sliding_plan, "MAX_EVENTS_TOLD", 25)
        rooms = [TalkingRoom(f"r{n}", CAROL) for n in range(3)]
        for each in rooms:
            last = await self.persist(each)
        await self.apply(last)
        first = await self.slide(lists=windows(limit=10))
        second = await self.slide(first.pos, windows(limit=10))
        self.assertEqual((len(first.rooms), len(second.rooms)), (2, 1))

    async def test_requests_that_are_repeated_leave_few_positions(self) -> None:
        rooms = [TalkingRoom(f"r{n}", CAROL) for n in range(15)]
        for each in rooms:
            last = await self.persist(each)
        await self.apply(last)
        first = await self.slide(lists=windows(0))
        answers = [await self.slide(first.pos, windows(n)) for n in range(1, 15)]
        count = "SELECT count(*) FROM synrepl._sliding_positions"
        stored = await self.read(lambda txn: txn.execute(count).fetchone()[0])
        self.assertEqual(stored, 9)
        again = await self.slide(answers[-1].pos, windows(14))
        self.assertEqual(again.rooms, {})
        # The position that is used next is the only one that goes on.
        for each in rooms:
            each.say("x")
            last = await self.persist(each)
        await self.apply(last)
        await self.slide(answers[-1].pos, windows(0))
        stored = await self.read(lambda txn: txn.execute(count).fetchone()[0])
        self.assertEqual(stored, 2)
        with self.assertRaises(UnknownPosition):
            await self.slide(first.pos, windows(14), process=AnsweringProcess(self.one.process))


class Damage(ConnectionsCase):
    """What is damaged in the tables."""

    async def test_a_damaged_room_is_left_out_and_told_when_it_is_whole(self) -> None:
        a, b = TalkingRoom("a", CAROL), TalkingRoom("b", CAROL)
        await self.persist(a)
        await self.apply(await self.persist(b))
        first = await self.slide(lists=windows())
        a.say("from a")
        event = b.say("from b")
        await self.persist(a)
        await self.apply(await self.persist(b))
        where = (
            "WHERE event_no = (SELECT event_no FROM synrepl._room_events"
            f" WHERE event_id = '{event.event_id}')"
        )
        self.sql(f"UPDATE synrepl._room_event_json SET checksum = checksum + 1 {where}")
        second = await self.slide(first.pos, windows())
        self.assertEqual(list(second.rooms), [a.room_id])
        self.sql(f"UPDATE synrepl._room_event_json SET checksum = checksum - 1 {where}")
        a.say("more")
        await self.apply(await self.persist(a))
        third = await self.slide(second.pos, windows())
        self.assertEqual(self.bodies(third, b), ["from b"])

    async def test_a_connection_whose_state_is_damaged_begins_anew(self) -> None:
        room = TalkingRoom("a", CAROL)
        await self.apply(await self.persist(room))
        first = await self.slide(lists=windows())
        for damage in (r"'\x00'", "state || state", r"'\x9306a0'"):
            self.sql(f"UPDATE synrepl._sliding_positions SET state = {damage}")
            other = AnsweringProcess(self.one.process)
            await other.apply(SlidingPos.parse(first.pos, SERVER).token.events)
            with self.assertRaises(UnknownPosition):
                await self.slide(first.pos, windows(5), process=other)


class Others(ConnectionsCase):
    """Users and rooms that do not concern a client."""

    async def test_a_user_that_is_in_no_room_is_told_nothing(self) -> None:
        room = TalkingRoom("a", CAROL)
        await self.apply(await self.persist(room))
        answer = await self.slide(
            lists=windows(), subscriptions=[room.room_id], identity=ClientIdentity(BOB, "D")
        )
        self.assertEqual((answer.rooms, answer.counts), ({}, {"all": 0}))

    async def test_a_banned_user_that_was_never_in_is_told_nothing(self) -> None:
        room = TalkingRoom("a")
        room.put("m.room.member", {"membership": "ban"}, ALICE, CAROL)
        await self.apply(await self.persist(room))
        answer = await self.slide(lists=windows(), subscriptions=[room.room_id])
        self.assertEqual((answer.rooms, answer.counts), ({}, {"all": 0}))

    async def test_a_ban_after_a_kick_begins_the_room_anew(self) -> None:
        room = TalkingRoom("a", CAROL)
        room.put("m.room.member", {"membership": "leave"}, ALICE, CAROL)
        await self.apply(await self.persist(room))
        first = await self.slide(lists=windows())
        self.assertEqual(first.rooms[room.room_id].membership, "leave")
        room.put("m.room.member", {"membership": "ban"}, ALICE, CAROL)
        await self.apply(await self.persist(room))
        second = await self.slide(first.pos, windows())
        result = second.rooms[room.room_id]
        self.assertEqual((result.membership, result.is_initial), ("ban", True))
        third = await self.slide(second.pos, windows())
        self.assertEqual(third.rooms, {})
