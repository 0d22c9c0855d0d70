"""The batches that wait in each room: one at a time, in order, within limits."""

from __future__ import annotations

from unittest import TestCase

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.rooms.persister import IncomingBatch, RoomPersister
from synrepl.services.rooms.room_queues import QueueLimits, RoomQueueFull, RoomQueues
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.store_case import StoreCase


class CountsOfQueues(TestCase):
    """Queues by themselves, without anything that persists."""

    def queues(self, limits: QueueLimits) -> RoomQueues:
        return RoomQueues(TwistedScheduler(reactor), limits)

    def test_bytes_are_counted_with_those_of_the_batch_that_comes(self) -> None:
        queues = self.queues(QueueLimits(size=10))
        with queues.entered({"!a:a": 6}):
            with queues.entered({"!a:a": 4}):
                self.assertEqual((queues.batches, queues.size), (2, 10))
            with self.assertRaises(RoomQueueFull), queues.entered({"!a:a": 5}):
                pass
            self.assertEqual((queues.batches, queues.size), (1, 6))

    def test_a_full_queue_of_the_last_room_keeps_a_batch_out_of_all(self) -> None:
        queues = self.queues(QueueLimits(batches=1))
        with queues.entered({"!b:b": 1}):
            with self.assertRaises(RoomQueueFull), queues.entered({"!a:a": 1, "!b:b": 1}):
                pass
            self.assertEqual(queues.batches, 1)

    def test_a_batch_that_fails_leaves_the_queues_of_all_of_its_rooms(self) -> None:
        queues = self.queues(QueueLimits(batches=1))
        for _ in range(2):
            with self.assertRaises(ZeroDivisionError), queues.entered({"!a:a": 1, "!b:b": 2}):
                raise ZeroDivisionError
        self.assertEqual((queues.batches, queues.size), (0, 0))


class FullQueues(StoreCase):
    """A persister whose queues are small, and a room that another transaction has locked."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.small = SmallRoom("10")
        self.room_id = self.small.create.room_id
        await self.one.persist(self.room_id, self.small.version, [*self.small.base])
        self.blocker = self.connect()
        self.addCleanup(self.blocker.close)

    def persister(self, batches: int = 50, size: int = 2**20) -> RoomPersister:
        return RoomPersister(
            self.one.process.scheduler, self.one.writer, queue_limits=QueueLimits(batches, size)
        )

    def block(self) -> None:
        """Lock the room until the blocker's transaction ends."""
        self.blocker.autocommit = False
        self.blocker.cursor().execute(
            "SELECT FROM synrepl._rooms WHERE room_id = %s FOR UPDATE", (self.room_id,)
        )

    def begin(self, persister: RoomPersister, *batches: IncomingBatch) -> Deferred[object]:
        return Deferred.fromCoroutine(persister.persist_rooms(batches))

    def batch(self, count: int = 1) -> IncomingBatch:
        """Messages of the small room."""
        events = [IncomingEvent(self.small.message(self.small.rules)) for _ in range(count)]
        return IncomingBatch(self.room_id, "10", events)

    async def test_more_batches_than_may_wait_are_refused_until_one_is_done(self) -> None:
        persister = self.persister(batches=2)
        self.block()
        running = [self.begin(persister, self.batch()) for _ in range(2)]
        self.assertEqual(persister.queues.batches, 2)
        await self.assertFailure(self.begin(persister, self.batch()), RoomQueueFull)
        self.assertEqual(persister.refused["max_queued"], 1)
        self.blocker.rollback()
        await gatherResults(running)
        self.assertEqual((persister.queues.batches, persister.queues.size), (0, 0))
        await self.begin(persister, self.batch())

    async def test_more_bytes_than_may_wait_are_refused_but_never_a_lone_batch(self) -> None:
        persister = self.persister(size=100)
        self.block()
        running = self.begin(persister, self.batch(count=3))
        self.assertGreater(persister.queues.size, 100)
        with self.assertRaisesRegex(RoomQueueFull, "1 batches with .* try again later"):
            await persister.persist(*self.batch())
        self.assertEqual(persister.refused["max_queued_bytes"], 1)
        self.blocker.rollback()
        await running

    async def test_a_full_queue_of_one_room_refuses_a_request_before_anything_is_written(
        self,
    ) -> None:
        persister = self.persister(batches=1)
        other = SmallRoom("12")
        created = IncomingBatch(other.create.room_id, "12", [IncomingEvent(other.create)])
        self.block()
        running = self.begin(persister, self.batch())
        await self.assertFailure(self.begin(persister, created, self.batch()), RoomQueueFull)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._rooms"), 1)
        # A room that is locked does not keep others waiting.
        (((create,),), _) = await persister.persist_rooms([created])
        self.assertEqual(create.outcome, EventOutcome.ACCEPTED)
        self.blocker.rollback()
        await running

    async def test_what_is_wrong_with_one_room_refuses_its_events_alone(self) -> None:
        persister = self.persister()
        other = SmallRoom("12")
        created = IncomingBatch(other.create.room_id, "12", [IncomingEvent(other.create)])
        wrong = self.batch(count=2)._replace(version="9")
        (refused, (create,)), judged = await persister.persist_rooms([wrong, created])
        self.assertEqual([each.outcome for each in refused], [EventOutcome.REFUSED] * 2)
        self.assertEqual({type(each.error).__name__ for each in refused}, {"OtherRoomVersion"})
        self.assertEqual(create.outcome, EventOutcome.ACCEPTED)
        self.assertEqual([each.event_id for each in judged], [other.create.event_id])

    async def test_if_every_room_is_refused_the_request_is(self) -> None:
        wrong = self.batch()._replace(version="9")
        with self.assertRaisesRegex(Exception, "stored with version 10"):
            await self.persister().persist_rooms([wrong])
