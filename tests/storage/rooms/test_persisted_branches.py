"""A room made by hand whose branches meet: what a resolution removes, what is told of it, what is remembered."""

from __future__ import annotations

from synrepl.core.tokens import Range
from synrepl.rooms import Event, Room
from synrepl.streams.row import Row
from synrepl.streams.synapse.events import EVENTS, EventRow, StateRow
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.store_case import PersistingProcess, StoreCase

DAVE = "@dave:d"


class BannedOnOneBranch(StoreCase):
    """Dave sets the topic on one branch, and is banned on another one."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        small = self.small = SmallRoom("10", {"@alice:a": 100})
        self.room = Room(small.version)
        self.dave = small.member(DAVE, "join", [small.rules], [small.create, small.rules])
        cites = [small.create, small.levels, self.dave]
        self.topic = small.event("m.room.topic", {}, [self.dave], cites, DAVE, "")
        self.cited = [small.create, small.levels, small.alice, self.dave]
        self.ban = small.event(
            "m.room.member", {"membership": "ban"}, [self.dave], self.cited, key=DAVE
        )

    async def persist(self, *events: Event, by: PersistingProcess | None = None) -> None:
        await (by or self.one).persist(self.small.create.room_id, self.small.version, events)
        for each in events:
            self.room.receive(each)

    async def told(self, after: int) -> list[tuple[Row, ...]]:
        """The rows of the facts of ``events``, but for some of the first."""
        page = await self.one.process.store.page(EVENTS, Range(0, 1 << 40), None, 100)
        return [fact.rows for fact in page.facts[after:]]

    async def test_what_a_resolution_removes_goes_from_the_current_state_and_is_told(self) -> None:
        await self.persist(*self.small.base, self.dave, self.topic)
        await self.check_equal(self.room)
        await self.persist(self.ban)
        self.assertNotIn(("m.room.topic", ""), self.room.current_state())
        await self.check_equal(self.room)
        ((_, *changes),) = await self.told(after=6)
        room_id = self.small.create.room_id
        self.assertEqual(
            changes,
            [
                StateRow(room_id, "m.room.member", DAVE, self.ban.event_id),
                StateRow(room_id, "m.room.topic", "", None),
            ],
        )

    async def test_a_fact_tells_of_an_event_whether_it_was_rejected(self) -> None:
        cites = [self.small.create, self.small.levels, self.ban]
        message = self.small.event("m.room.message", {}, [self.ban], cites, DAVE)
        await self.persist(*self.small.base, self.dave, self.ban, message)
        facts = await self.told(after=5)
        rejected = [row.rejected for rows in facts for row in rows if isinstance(row, EventRow)]
        self.assertEqual(rejected, [False, True])

    async def test_processes_that_persist_in_turn_see_what_the_other_one_did(self) -> None:
        two = await self.start_process("two")
        await self.persist(*self.small.base, self.dave)
        for number in range(3):
            await self.persist((self.topic, self.ban, self.small.carol)[number], by=two)
            await self.persist(self.small.message(self.dave))
            await self.check_equal(self.room, number)
