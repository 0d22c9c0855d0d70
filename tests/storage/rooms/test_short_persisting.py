"""Single events in a room that is remembered: when they need no thread, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred

from synrepl.rooms import Event, Room
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.tables.incoming import PersistedBatch
from synrepl.storage.rooms.tables.numbers import ROOM_LOCKS
from synrepl.storage.short_work import Opening
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.events import EVENTS
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.store_case import PersistingProcess, StoreCase


class ShortPersisting(StoreCase):
    """A small room, event by event."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.small = SmallRoom("10")
        self.room_id = self.small.create.room_id
        self.ways: list[str] = []
        opening, call = PersistRun.opening, PersistRun.__call__

        def noted_opening(run: PersistRun, outbox: Outbox) -> Opening | None:
            found = opening(run, outbox)
            if found is not None:
                self.ways.append("short")
            return found

        def noted_call(run: PersistRun, txn: Transaction, outbox: Outbox) -> PersistRun:
            self.ways.append("thread")
            return call(run, txn, outbox)

        self.patch(PersistRun, "opening", noted_opening)
        self.patch(PersistRun, "__call__", noted_call)
        await self.persist(*self.small.base, self.small.carol)

    async def persist(self, *events: Event, by: PersistingProcess | None = None) -> PersistedBatch:
        process = by or self.one
        await self.until(lambda: process.process.short.is_idle)
        self.ways.clear()
        return await process.persist(self.room_id, self.small.version, events)

    async def check(self, events: Sequence[Event]) -> None:
        room = Room(self.small.version)
        for event in [*self.small.base, self.small.carol, *events]:
            room.receive(event)
        await self.check_equal(room)

    async def test_what_is_in_memory_needs_no_thread(self) -> None:
        small = self.small
        events = [small.message(small.carol)]
        events.append(small.topic(events[-1]))
        for event in events:  # the first ones of their types
            await self.persist(event)
        made = (
            small.message,
            small.topic,  # changes an entry
            lambda last: small.member("@dave:a", "join", [last], [small.create, small.rules]),
            small.message,
        )
        for make in made:
            events.append(make(events[-1]))
            done = await self.persist(events[-1])
            self.assertEqual(self.ways, ["short"], events[-1].type)
            self.assertEqual([each.outcome for each in done.events], ["accepted"])
        await self.check(events)

    async def test_what_needs_an_answer_is_persisted_in_a_thread(self) -> None:
        small = self.small
        first = small.message(small.carol)
        await self.persist(first)
        beside = small.message(small.carol)
        merging = small.message(first)
        cases = [
            ("follows an earlier event", beside),
            ("one of two extremities", merging),
        ]
        for name, event in cases:
            with self.subTest(name):
                await self.persist(event)
                self.assertEqual(self.ways, ["thread"])
        self.one.forget()
        last = small.message(merging)
        await self.persist(last)
        self.assertEqual(self.ways, ["thread"])
        await self.check([first, beside, merging, last])

    async def test_a_room_that_another_process_has_changed_is_read_again(self) -> None:
        small = self.small
        two = await self.start_process("two")
        first = small.message(small.carol)
        await self.persist(first)
        theirs, ours = small.message(first), small.message(first)
        before = await self.persist(theirs, by=two)
        after = await self.persist(ours)
        self.assertEqual(self.ways, ["short", "thread"])
        # No token was reserved as long as it was not known what to read.
        stream_ids = [done.events[0].stream_id for done in (before, after)]
        self.assertEqual(stream_ids[1], (stream_ids[0] or 0) + 1)
        await self.check([first, theirs, ours])

    async def test_no_position_waits_for_the_lock_of_a_room(self) -> None:
        small = self.small
        first = small.message(small.carol)
        await self.persist(first)
        room_no = self.sql("SELECT room_no FROM synrepl._rooms")
        outside = self.connect()
        self.sql("SELECT pg_advisory_lock(%s, %s)", ROOM_LOCKS, room_no, on=outside)
        second = small.message(first)
        await self.until(lambda: self.one.process.short.is_idle)
        running = Deferred.fromCoroutine(self.one.persist(self.room_id, small.version, [second]))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await self.until(lambda: self.sql(waiting) == 1)
        for stream in (EVENTS, CACHES):
            self.assertEqual(self.one.writer.ledger(stream.name).open_requests, 0)
        self.assertFalse(running.called)
        self.sql("SELECT pg_advisory_unlock(%s, %s)", ROOM_LOCKS, room_no, on=outside)
        await running
        await self.check([first, second])
