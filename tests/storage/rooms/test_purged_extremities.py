"""What purges do to forward extremities, and to rejected events on top of them."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.rooms import Event
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.tables.events import events_by_id
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.kept_rooms import IntrudingDatabase, Killed, MaintainedCase


class PurgedExtremities(MaintainedCase):
    """Small rooms with forward extremities before the point."""

    async def test_an_event_on_top_of_rejected_ones_ends_the_extremity_below_them(self) -> None:
        small = SmallRoom("10")
        rejected = self.rejected_on(small, [small.carol], 3)
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, [*small.base, small.carol, *rejected])
        point = await self.maintenance.purge_point(room_id, rejected[2].event_id)
        plan = await self.maintenance.plan_purge(room_id, point)
        report = await self.maintenance.purge(room_id, point, index_check=False)
        self.assertEqual(report.plan, plan)
        self.assertEqual(set(report.leftovers.values()), {0})
        self.assertEqual(await self.verified(room_id), [])
        self.one.forget()
        newest = small.message(rejected[2])
        await self.one.persist(room_id, small.version, [newest])
        self.assertEqual(self.ends(), [newest.event_id])

    async def test_an_extremity_that_came_meanwhile_stays(self) -> None:
        small = SmallRoom("10")
        late = small.message(small.carol)
        made = [small.carol]
        for _ in range(4):
            made.append(small.message(made[-1]))
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, [*small.base, *made])

        async def send() -> None:
            await self.one.persist(room_id, small.version, [late])

        database = IntrudingDatabase(self.database, "find events", send)
        point = await self.maintenance.purge_point(room_id, made[-1].event_id)
        await RoomMaintenance(database).purge(room_id, point, index_check=False)
        self.assertEqual(self.ends(), sorted([made[-1].event_id, late.event_id]))
        found = await self.read(lambda txn: events_by_id(txn, [late.event_id]))
        self.assertFalse(found[late.event_id].is_outlier)
        self.assertEqual(await self.verified(room_id), [])

    async def test_rejected_events_that_come_back_do_not_end_an_extremity_that_came_meanwhile(
        self,
    ) -> None:
        small = SmallRoom("10")
        late, rejected, end, _ = await self.purged_before_an_extremity_came(small, 3)
        await self.come_back(small, [rejected[1], rejected[0]], [late, end])

    async def test_an_event_that_was_followed_before_it_went_does_not_become_an_extremity(
        self,
    ) -> None:
        small = SmallRoom("10")
        # The rejected event goes while what it follows is an extremity, which goes when it is followed.
        late, rejected, end, point = await self.purged_before_an_extremity_came(small, 2)
        newest = [late]
        for _ in range(2):
            newest.append(small.message(newest[-1]))
        room_id = small.create.room_id
        await self.one.persist(room_id, small.version, newest[1:])
        await self.maintenance.purge(room_id, point, index_check=False)
        await self.come_back(small, [rejected[0], late], [newest[2], end])

    async def test_what_came_on_top_of_an_extremity_after_edges_were_cut_goes(self) -> None:
        small = SmallRoom("10")
        late, rejected, _ = await self.rejected_before_what_they_follow(small, 2)
        room_id = small.create.room_id
        point = await self.maintenance.purge_point(room_id, rejected[-1].event_id)

        async def kill() -> None:
            raise Killed

        database = IntrudingDatabase(self.database, "find cited events", kill)
        with self.assertRaises(Killed):
            await RoomMaintenance(database).purge(room_id, point, index_check=False)
        await self.one.persist(room_id, small.version, [late])
        await self.maintenance.purge(room_id, point, index_check=False)
        found = await self.read(lambda txn: events_by_id(txn, [rejected[0].event_id]))
        self.assertEqual(found, {})
        self.assertEqual(await self.verified(room_id), [])

    async def purged_before_an_extremity_came(
        self, small: SmallRoom, count: int
    ) -> tuple[Event, list[Event], Event, PurgePoint]:
        """A room of which rejected events but the last go, when an event arrives that they are on top of.

        :returns: this event, the rejected ones, the other forward extremity, and the point before which they went
        """
        late, rejected, end = await self.rejected_before_what_they_follow(small, count)
        room_id = small.create.room_id

        async def send() -> None:
            await self.one.persist(room_id, small.version, [late])

        database = IntrudingDatabase(self.database, "cut edges", send)
        point = await self.maintenance.purge_point(room_id, rejected[-1].event_id)
        await RoomMaintenance(database).purge(room_id, point, index_check=False)
        self.assertEqual(await self.verified(room_id), [])
        self.assertEqual(self.ends(), sorted([late.event_id, end.event_id]))
        return late, rejected, end, point

    async def rejected_before_what_they_follow(
        self, small: SmallRoom, count: int
    ) -> tuple[Event, list[Event], Event]:
        """A room with rejected events, each on top of the one before.

        :returns: an event that has yet to come, which the first one follows, the rejected ones, and the forward
            extremity
        """
        late = small.message(small.carol)
        made = [small.carol]
        for _ in range(4):
            made.append(small.message(made[-1]))
        # High enough that the last one is not before a point at which all others are.
        rejected = self.rejected_on(small, [late, made[-2]], count)
        first = IncomingEvent(rejected[0], state_before=small.state(*small.base, small.carol))
        given = [*small.base, *made, first, *rejected[1:]]
        await self.one.persist(small.create.room_id, small.version, given)
        return late, rejected, made[-1]

    async def come_back(
        self, small: SmallRoom, events: Sequence[Event], ends: Sequence[Event]
    ) -> None:
        """Events come with their states again, and the forward extremities stay the same."""
        room_id = small.create.room_id
        state = small.state(*small.base, small.carol)
        for each in events:
            self.one.forget()
            again = IncomingEvent(each, state_before=state, backfilled=True)
            done = await self.one.persist(room_id, small.version, [again])
            self.assertIn(done.events[0].outcome, (EventOutcome.ACCEPTED, EventOutcome.REJECTED))
            self.assertEqual(self.ends(), sorted(end.event_id for end in ends))
        self.assertEqual(await self.verified(room_id), [])

    def rejected_on(self, small: SmallRoom, below: Sequence[Event], count: int) -> list[Event]:
        """Events of a stranger, each on top of the one before, the first on top of given ones."""
        cites = [small.create, small.levels]
        made: list[Event] = []
        for _ in range(count):
            made.append(small.event("m.room.message", {}, made[-1:] or below, cites, "@dave:d"))
        return made

    def ends(self) -> list[str]:
        """The forward extremities, in order."""
        found: list[str] = self.sql(
            "SELECT array_agg(event_id ORDER BY event_id) FROM synrepl._forward_extremities"
            " JOIN synrepl._room_events USING (event_no)"
        )
        return found
