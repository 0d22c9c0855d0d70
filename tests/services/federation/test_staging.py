"""Events of rooms that another process judges, or that cannot be judged soon: staged, and judged once."""

from __future__ import annotations

from typing import Any

from synrepl.rooms import Event
from synrepl.services.federation.inbound import room_inboxes
from synrepl.services.federation.inbound.sweeping import WAKE_ACTION
from synrepl.storage.federation import staged_events
from tests.services.federation.inbound_case import InboundCase, InboundProcess


class Staging(InboundCase):
    """Process "one" judges; process "two" receives."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.two: InboundProcess = self.inbound(await self.start_process("two"), persists=False)
        self.two.others["one"] = self.here

    def staged(self) -> int:
        """The number of staged events."""
        return int(self.sql("SELECT count(*) FROM synrepl._staged_events"))

    def verdicts(self, events: list[Event]) -> list[str | None]:
        """What this server has of some events."""
        return [self.stored(each) for each in events]

    async def test_events_of_another_process_are_staged_and_judged_there(self) -> None:
        room = await self.shared_room()
        sent = [self.say(room, f"{number}") for number in range(4)]
        answer = await self.two.receive(sent)
        self.assertEqual(answer, {each.event_id: {} for each in sent})
        await self.until(lambda: self.staged() == 0)
        await self.settled()
        self.assertEqual(self.verdicts(sent), ["accepted"] * 4)
        self.assertEqual(self.two.forwarded, [("one", WAKE_ACTION)])
        self.assertEqual(self.federation.requests, [])
        await self.check_equal(room.room, orders=False)

    async def test_a_process_finds_staged_events_of_which_it_was_not_told(self) -> None:
        room, other = await self.shared_room(), await self.shared_room(name="other")
        self.two.others.clear()
        sent = [self.say(each, f"{number}") for number in range(3) for each in (room, other)]
        await self.two.receive(sent)
        self.assertEqual(self.staged(), 6)
        await self.here.sweeper.look()
        self.assertEqual(self.here.sweeper.left.staged, 6)
        await self.here.sweeper.wake_staged()
        await self.settled()
        self.assertEqual((self.staged(), self.verdicts(sent)), (0, ["accepted"] * 6))

    async def test_processes_leave_the_rooms_of_others_alone(self) -> None:
        room = await self.shared_room()
        self.two.others.clear()
        await self.two.receive([self.say(room)])
        three = self.inbound(await self.start_process("three"))
        await three.sweeper.wake_staged()
        self.assertTrue(three.is_idle)
        self.assertEqual(self.staged(), 1)

    async def test_a_room_that_was_moved_is_judged_by_its_new_process(self) -> None:
        room = await self.shared_room()
        self.two.others.clear()
        event = self.say(room)
        await self.two.receive([event])
        writers = ("one", "three")
        three = self.inbound(await self.start_process("three"), writers)
        here = self.inbound(self.one, writers)
        self.sql("UPDATE synrepl._rooms SET writer = 'three'")
        await here.sweeper.wake_staged()
        self.assertEqual((here.is_idle, self.staged()), (True, 1))
        await three.sweeper.wake_staged()
        await self.settled(three)
        self.assertEqual((self.staged(), self.stored(event)), (0, "accepted"))

    async def test_events_that_take_too_long_are_staged_and_the_transaction_is_answered(
        self,
    ) -> None:
        slow, quick = await self.shared_room(), await self.shared_room(name="quick")
        here = self.inbound(self.one, wait_s=0.4)
        late, soon = self.say(slow), self.say(quick)
        with self.one.persister.queues.entered({slow.room_id: 1}) as (lock,):
            async with lock:
                answer = await here.receive([late, soon])
                self.assertEqual(answer, {late.event_id: {}, soon.event_id: {}})
                self.assertEqual(self.verdicts([late, soon]), [None, "accepted"])
                self.assertEqual(self.staged(), 1)
        await self.settled(here)
        await here.sweeper.wake_staged()
        await self.settled(here)
        self.assertEqual((self.staged(), self.stored(late)), (0, "accepted"))

    async def test_events_of_a_room_that_waits_for_its_turn_are_judged_together(self) -> None:
        self.patch(room_inboxes, "MAX_ROOMS", 1)
        self.patch(room_inboxes, "SLOW_S", 600.0)
        first, second = await self.shared_room(), await self.shared_room(name="second")
        here = self.inbound(self.one)
        batches = self.batches()
        before, *sent = self.say(first), *(self.say(second, f"{number}") for number in range(4))
        with self.one.persister.queues.entered({first.room_id: 1}) as (lock,):
            async with lock:
                answers = [self.start(here.receive([before]))]
                await self.until(lambda: batches == [(first.room_id, 1)])
                for number, event in enumerate(sent):
                    answers.append(self.start(here.receive([event], origin=f"{number}.test")))
                await self.until(lambda: here.inboxes.waiting[0] == 4)
        for each in answers:
            await each
        self.assertEqual(batches, [(first.room_id, 1), (second.room_id, 4)])
        self.assertEqual(self.verdicts([before, *sent]), ["accepted"] * 5)

    async def test_a_room_that_takes_long_does_not_hold_up_others(self) -> None:
        self.patch(room_inboxes, "MAX_ROOMS", 1)
        self.patch(room_inboxes, "SLOW_S", 0.0)
        first, second = await self.shared_room(), await self.shared_room(name="second")
        here = self.inbound(self.one)
        batches = self.batches()
        slow, quick = self.say(first), self.say(second)
        with self.one.persister.queues.entered({first.room_id: 1}) as (lock,):
            async with lock:
                answer = self.start(here.receive([slow]))
                await self.until(lambda: batches == [(first.room_id, 1)])
                await here.receive([quick], origin="other.test")
                self.assertEqual(self.verdicts([quick]), ["accepted"])
        await answer
        self.assertEqual(self.verdicts([slow]), ["accepted"])

    def batches(self) -> list[tuple[str, int]]:
        """The room and the number of events of each batch that is persisted from now on."""
        found: list[tuple[str, int]] = []
        persist = self.one.persister.persist

        async def recorded(room_id: str, version: str, events: Any, *more: Any) -> Any:
            found.append((room_id, len(events)))
            return await persist(room_id, version, events, *more)

        self.patch(self.one.persister, "persist", recorded)
        return found

    async def test_events_that_are_staged_while_others_are_judged_come_next(self) -> None:
        room = await self.shared_room()
        batches = self.batches()
        sent = [self.say(room, f"{number}") for number in range(2)]
        with self.one.persister.queues.entered({room.room_id: 1}) as (lock,):
            async with lock:
                await self.two.receive(sent[:1])
                await self.until(lambda: batches == [(room.room_id, 1)])
                await self.two.receive(sent[1:])
                await self.until(lambda: len(self.two.forwarded) == 2)
        await self.settled()
        self.assertEqual((self.staged(), self.verdicts(sent)), (0, ["accepted"] * 2))

    async def test_staged_events_with_missing_parents_wait(self) -> None:
        room = await self.shared_room()
        sent = [self.say(room, f"{number}") for number in range(3)]
        await self.two.receive(sent[-1:])
        await self.until(lambda: self.staged() == 0)
        await self.settled()
        self.assertEqual(self.verdicts(sent), ["accepted"] * 3)
        self.assertEqual(len(self.federation.asked("get_missing_events")), 1)

    async def test_an_event_is_staged_once(self) -> None:
        room = await self.shared_room()
        self.two.others.clear()
        event = self.say(room)
        for _ in range(2):
            self.assertEqual(await self.two.receive([event]), {event.event_id: {}})
        self.assertEqual(self.staged(), 1)

    async def test_a_room_has_so_many_staged_events_and_no_more(self) -> None:
        self.patch(staged_events, "MAX_STAGED", 2)
        room, other = await self.shared_room(), await self.shared_room(name="other")
        self.two.others.clear()
        sent = [self.say(room, f"{number}") for number in range(3)]
        await self.two.receive(sent[:2])
        elsewhere = self.say(other)
        answer = await self.two.receive([sent[2], elsewhere])
        self.assertIn("too many", answer[sent[2].event_id]["error"])
        self.assertEqual(answer[elsewhere.event_id], {})
        self.assertEqual(self.staged(), 3)

    async def test_refused_events_do_not_stay_staged(self) -> None:
        room = await self.shared_room()
        self.two.others.clear()
        event = self.say(room)
        await self.two.receive([event])
        # An event with the same ID in another room makes it one that is not acceptable.
        self.sql(
            "INSERT INTO synrepl._room_events (event_no, depth, origin_server_ts, room_no, type_no,"
            " flags, event_id, sender, prev_nos, auth_nos) VALUES"
            " (-1, 1, 1, -1, 1, 1, %s, '@x:y', '{}', '{}')",
            event.event_id,
        )
        await self.here.sweeper.wake_staged()
        await self.settled()
        self.assertEqual(self.staged(), 0)
        self.assertEqual(self.here.inboxes.outcomes["refused"], 1)
