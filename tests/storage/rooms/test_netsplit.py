"""A room that was split: many members, and a forward extremity for each that left meanwhile."""

from __future__ import annotations

from synrepl.rooms import Event
from synrepl.storage.rooms.persisting.limits import (
    ResolutionTooLarge,
    RoomLimits,
    TooManyExtremities,
)
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.blocking_store import BlockingPersister, RecordedFacts
from tests.storage.rooms.store_case import StoreCase


class SplitRoom:
    """Members join one after another, and then leave all at once.

    :ivar leaves: each follows the last join
    """

    def __init__(self, version: str, members: int) -> None:
        self.small = small = SmallRoom(version)
        self.joins: list[Event] = []
        last = small.rules
        for number in range(members):
            cites = [small.create, small.rules]
            last = small.member(f"@user{number}:{number % 7}", "join", [last], cites)
            self.joins.append(last)
        self.leaves = [
            small.member(each.sender, "leave", [last], [small.create, each]) for each in self.joins
        ]
        self.room_id = small.create.room_id

    @property
    def before(self) -> list[Event]:
        """The room before the split."""
        return [*self.small.base, *self.joins]


class Netsplits(StoreCase):
    """What a split costs, and what is refused."""

    def test_the_statements_of_an_event_do_not_go_with_the_number_of_extremities(self) -> None:
        process = BlockingPersister(self.dsn, "blocking", RecordedFacts())
        self.addCleanup(process.database.close)
        counts = []
        for members in (20, 60):
            process.empty()
            split = SplitRoom("10", members)
            version = split.small.version
            process.persist(split.room_id, version, [IncomingEvent(each) for each in split.before])
            *leaves, last = split.leaves
            process.persist(split.room_id, version, [IncomingEvent(each) for each in leaves])
            found = []
            for incoming in (last, split.small.message(*split.leaves[:10])):
                process.forget()
                process.persist(split.room_id, version, [IncomingEvent(incoming)])
                found.append(process.statements)
            counts.append(found)
        self.assertEqual(counts[0], counts[1])

    async def test_what_would_be_one_extremity_too_many_is_refused_and_the_rest_is_taken(
        self,
    ) -> None:
        two = await self.start_process("two", RoomLimits(max_extremities=40))
        split = SplitRoom("10", 60)
        done = await two.persist(split.room_id, split.small.version, split.before)
        self.assertEqual({each.outcome for each in done.events}, {EventOutcome.ACCEPTED})
        done = await two.persist(split.room_id, split.small.version, split.leaves)
        outcomes = [each.outcome for each in done.events]
        # The first takes the place of the last join.
        self.assertEqual(outcomes[:40], [EventOutcome.ACCEPTED] * 40)
        self.assertEqual({type(each.error) for each in done.events[40:]}, {TooManyExtremities})
        self.assertEqual(two.persister.refused["max_extremities"], 20)
        joined = split.small.message(*split.leaves[:10])
        done = await two.persist(split.room_id, split.small.version, [joined, *split.leaves[40:]])
        outcomes = [each.outcome for each in done.events]
        self.assertEqual(outcomes.count(EventOutcome.ACCEPTED), 10)
        self.assertEqual(self.sql("SELECT extremities FROM synrepl._room_heads"), 40)

    async def test_only_the_events_that_are_too_much_to_resolve_are_refused(self) -> None:
        """In room version 1 as in others."""
        two = await self.start_process("two", RoomLimits(max_resolved=30))
        for version in ("1", "2", "10", "12"):
            split = SplitRoom(version, 20)
            await two.persist(split.room_id, split.small.version, split.before)
            topics = [split.small.topic(split.joins[-1]) for _ in range(2)]
            events = [*split.leaves, *topics]
            done = await two.persist(split.room_id, split.small.version, events)
            errors = [each.error for each in done.events]
            taken = errors.count(None)
            self.assertEqual(errors[:taken], [None] * taken, version)
            self.assertEqual({type(each) for each in errors[taken:]}, {ResolutionTooLarge})
            # Each leave is in conflict with a join; from version 2 on, with what these cite, too.
            self.assertGreater(taken, 9, version)
            self.assertLess(taken, 16, version)
            stored = self.sql(
                "SELECT count(*) FROM synrepl._room_events JOIN synrepl._rooms USING (room_no)"
                " WHERE room_id = %s",
                split.room_id,
            )
            self.assertEqual(stored, len(split.before) + taken)
            # What follows an extremity makes no larger conflict.
            message = split.small.message(split.leaves[0])
            done = await two.persist(split.room_id, split.small.version, [message])
            self.assertEqual(done.events[0].outcome, EventOutcome.ACCEPTED)
            await self.empty()
            two.forget()
