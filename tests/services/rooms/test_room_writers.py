"""Rooms are moved between two processes that persist, while events come in at both."""

from __future__ import annotations

from itertools import cycle
from random import Random

from twisted.internet.defer import Deferred, gatherResults

from simulator.rooms.random_rooms import RandomRoom
from synrepl.core.slices import Slices
from synrepl.rooms import Room
from synrepl.services.rooms.assignment import OtherRoomWriter
from synrepl.services.rooms.room_intake import RoomIntake
from synrepl.services.rooms.room_writers import (
    NoRoomWriters,
    NotAmongRoomWriters,
    RoomWriterNotLive,
    RoomWriters,
)
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.store_case import PersistingProcess, StoreCase


class TwoWriters(StoreCase):
    """Processes ``one`` and ``two``, to which rooms are assigned."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.two = await self.start_process("two")
        self.writers = RoomWriters(self.database, ["one", "two"])
        self.intakes = {each.process.name: self.intake(each) for each in (self.one, self.two)}
        self.small = SmallRoom("10")
        self.room_id = self.small.create.room_id

    def intake(self, process: PersistingProcess) -> RoomIntake:
        writers = RoomWriters(process.process.database, ["one", "two"])
        slices = Slices(process.process.scheduler)
        return RoomIntake(process.persister, writers, process.process.name, slices)

    async def writer_of(self, room_id: str) -> str:
        return (await self.writers.place([room_id])).assignment.writer_of(room_id)

    async def create(self) -> tuple[str, str]:
        """Make the room; returns the process that has it, and the other one."""
        first = await self.writer_of(self.room_id)
        await self.intakes[first].persist(self.small.create.raw, "10")
        return first, "two" if first == "one" else "one"

    async def test_a_move_takes_effect_with_the_next_request_at_any_process(self) -> None:
        first, other = await self.create()
        alice = self.small.alice.raw
        with self.assertRaisesRegex(OtherRoomWriter, f"assigned to '{first}'"):
            await self.intakes[other].persist(alice)
        self.assertEqual(await self.writers.move(self.room_id, other), first)
        with self.assertRaisesRegex(OtherRoomWriter, f"assigned to '{other}'"):
            await self.intakes[first].persist(alice)
        (done,), _ = await self.intakes[other].persist(alice)
        self.assertEqual(done.outcome.value, "accepted")
        self.assertEqual(await self.writers.move(self.room_id, None), other)
        self.assertEqual(await self.writer_of(self.room_id), first)

    async def test_the_creation_of_a_room_that_was_moved_is_refused_behind_events_of_another(
        self,
    ) -> None:
        await self.create()
        moved = SmallRoom("12", room_version="12").create
        first = await self.writer_of(moved.room_id)
        other = "two" if first == "one" else "one"
        await self.intakes[first].persist(moved.raw)
        await self.writers.move(self.room_id, first)
        await self.writers.move(moved.room_id, other)
        body = b"\n".join([self.small.alice.raw, moved.raw])
        with self.assertRaisesRegex(OtherRoomWriter, f"{moved.room_id} is assigned to '{other}'"):
            await self.intakes[first].persist(body)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._room_events"), 2)

    async def test_events_that_come_in_during_moves_are_persisted_once_each(self) -> None:
        made = RandomRoom(Random(5), "10")
        made.more(120)
        events = made.events
        first = await self.writer_of(made.room_id)
        await self.intakes[first].persist(b"\n".join(each.raw for each in events[:10]), "10")
        followed: list[str] = []

        async def post(body: bytes) -> None:
            """Send events as a client does that goes where a refusal sends it."""
            at = "one"
            for _ in range(20):
                try:
                    await self.intakes[at].persist(body, "10")
                    followed.append(at)
                    return
                except OtherRoomWriter as refused:
                    at = str(refused.facts["assigned_to"])
            self.fail("a client was sent to and fro")

        async def move() -> None:
            for _, writer in zip(range(12), cycle(["two", "one"])):
                await self.writers.move(made.room_id, writer)

        bodies = [
            b"\n".join(each.raw for each in events[at : at + 5]) for at in range(10, len(events), 5)
        ]
        calls = [post(each) for each in bodies] + [post(each) for each in bodies[::3]]
        await gatherResults([Deferred.fromCoroutine(each) for each in (*calls, move())])
        self.assertEqual(len(followed), len(calls))
        stored = self.sql("SELECT array_agg(event_id ORDER BY stream_id) FROM synrepl._room_events")
        self.assertEqual(sorted(stored), sorted(each.event_id for each in events))
        by_id = {each.event_id: each for each in events}
        room = Room(made.version)
        for event_id in stored:
            room.receive(by_id[event_id])
        await self.check_equal(room)

    async def test_a_new_list_moves_the_rooms_of_a_process_that_leaves(self) -> None:
        first, other = await self.create()
        await self.writers.set([other])
        self.assertEqual(await self.writer_of(self.room_id), other)
        shown = await self.writers.overview()
        self.assertEqual([each.writer for each in shown.writers], [other])
        self.assertEqual(set(shown.writers[0].states.values()), {"live"})
        self.assertFalse(shown.is_configured)
        with self.assertRaisesRegex(NotAmongRoomWriters, f"'{first}' is not one of them"):
            await self.writers.move(self.room_id, first)
        await self.writers.reset()
        self.assertEqual(await self.writer_of(self.room_id), first)
        self.assertTrue((await self.writers.overview()).is_configured)

    async def test_a_move_to_a_process_that_left_the_list_does_not_count(self) -> None:
        first, other = await self.create()
        await self.writers.move(self.room_id, other)
        (moved,) = [each.moved for each in (await self.writers.overview()).writers if each.moved]
        self.assertEqual(moved, 1)
        await self.writers.set([first])
        self.assertEqual(await self.writer_of(self.room_id), first)

    async def test_rooms_are_not_given_to_a_process_that_does_not_live(self) -> None:
        first, other = await self.create()
        with self.assertRaisesRegex(RoomWriterNotLive, "'three' cannot get rooms.* is unknown"):
            await self.writers.set([first, "three"])
        await {"one": self.one, "two": self.two}[other].writer.stop()
        with self.assertRaisesRegex(RoomWriterNotLive, "it is idle"):
            await self.writers.move(self.room_id, other)
        await self.writers.set([first])
        with self.assertRaises(RoomWriterNotLive):
            await self.writers.reset()
        self.assertEqual(await self.writer_of(self.room_id), first)

    async def test_what_there_is_not_cannot_be_moved(self) -> None:
        with self.assertRaises(UnknownRoom):
            await self.writers.move("!nowhere:a", "one")
        with self.assertRaises(NoRoomWriters):
            await self.writers.set([])
