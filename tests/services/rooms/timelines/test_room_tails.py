"""Tails of rooms: read once for all members, and only where they say enough."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from twisted.internet.defer import Deferred

from simulator.rooms.random_rooms import USERS, EventMaker
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Event
from synrepl.services.rooms.news.recent_changes import ChangeKind
from synrepl.services.rooms.store import RoomStore
from synrepl.services.rooms.timelines.client_filter import (
    NO_FILTER,
    ClientFilter,
    RoomEventFilter,
    RoomFilter,
)
from synrepl.services.rooms.timelines.room_tails import MAX_AGE_S, RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import JoinedRoom, RoomsUpdate, TimelineReader
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.timelines.stored_tails import TAIL_EVENTS
from tests.services.rooms.timelines.gated_database import GatedDatabase
from tests.services.world import manual_clock
from tests.storage.rooms.store_case import PersistingProcess, StoreCase

ALICE, CAROL, BOB, *_ = USERS


class TailsCase(StoreCase):
    """A public room of Alice whose history is for those who are in it, with Carol and Bob."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.clock = manual_clock()
        scheduler = TwistedScheduler(self.clock)
        self.counted: Any = GatedDatabase(self.database)
        self.tails = RoomTails(scheduler, self.counted)
        self.store = RoomStore(self.database)
        self.timelines = Timelines(self.counted, scheduler, self.tails)
        self.make = make = EventMaker("10", "tails")
        joins = {"membership": "join"}
        joined = make.event("m.room.member", joins, [make.create], [make.create], key=ALICE)
        levels = make.event(
            "m.room.power_levels",
            {"state_default": 0, "users": {}},
            [joined],
            [make.create, joined],
            key="",
        )
        self.cites = [make.create, joined, levels]
        rules = self.state("m.room.join_rules", {"join_rule": "public"}, levels)
        self.cites.append(rules)
        visible = {"history_visibility": "joined"}
        self.visibility = self.state("m.room.history_visibility", visible, rules)
        self.carol = self.join(CAROL, self.visibility)
        self.bob = self.join(BOB, self.carol)
        await self.persist(make.create, joined, levels, rules, self.visibility)
        await self.persist(self.carol, self.bob)

    def state(self, kind: str, content: dict[str, Any], follows: Event) -> Event:
        """A state event of Alice."""
        return self.make.event(kind, content, [follows], self.cites[:3], key="")

    def join(self, user: str, follows: Event) -> Event:
        """A user joins."""
        cites = [self.make.create, self.cites[2], self.cites[3]]
        content = {"membership": "join"}
        return self.make.event("m.room.member", content, [follows], cites, user, user)

    def say(self, text: str, follows: Event) -> Event:
        """A message of Alice."""
        return self.make.event("m.room.message", {"body": text}, [follows], self.cites[:3])

    async def persist(
        self, *events: Event | IncomingEvent, by: PersistingProcess | None = None
    ) -> None:
        """Store events, and pass on that the room has changed."""
        await (by or self.one).persist(self.make.room_id, self.make.version, events)
        self.tails.changed(ChangeKind.ROOM, "one", 0, self.make.room_id)

    async def highest(self) -> int:
        """The last stream ordering."""
        sql = "SELECT max(stream_id) FROM synrepl.events"
        return int(await self.read(lambda txn: txn.execute(sql).fetchone()[0]))

    async def now(self) -> PositionVector:
        """The vector of everything."""
        return PositionVector(linear=await self.highest())

    async def since(
        self,
        since: PositionVector,
        user: str = BOB,
        upto: PositionVector | None = None,
        **more: Any,
    ) -> RoomsUpdate:
        """What is new for a user who has been in the room."""
        return await self.timelines.since(
            TimelineReader(user, ignored=more.pop("ignored", frozenset())),
            since,
            upto or await self.now(),
            [self.make.room_id],
            more.pop("wanted", NO_FILTER),
            memberships_changed=False,
            **more,
        )

    async def room(self, *args: Any, **more: Any) -> JoinedRoom:
        """What is new in the room."""
        return (await self.since(*args, **more)).joined[self.make.room_id]

    def ids(self, room: JoinedRoom) -> list[str]:
        """The events of a timeline."""
        return [each.event_id for each in room.timeline.events]

    def assert_read(self, *names: str) -> None:
        """These transactions were made since the last time."""
        self.assertEqual(self.counted.names, list(names))
        self.counted.names.clear()


class SharedTails(TailsCase):
    """Which reads are shared, and for how long."""

    async def test_an_event_is_read_once_for_all_members(self) -> None:
        before = await self.now()
        message = self.say("hello", self.bob)
        await self.persist(message)
        upto = await self.now()
        users = ALICE, BOB, CAROL
        waiting = [Deferred.fromCoroutine(self.since(before, user, upto)) for user in users]
        found = [(await each).joined[self.make.room_id] for each in waiting]
        self.assertEqual([self.ids(each) for each in found], [[message.event_id]] * 3)
        self.assertIs(found[1], found[2])
        self.assert_read("tails of rooms")

    async def test_clients_that_asked_at_different_times_share_it(self) -> None:
        tokens = []
        event = self.bob
        for number in range(3):
            tokens.append(await self.now())
            event = self.say(str(number), event)
            await self.persist(event)
        tokens.append(await self.now())
        await self.persist(last := self.say("last", event))
        self.assertEqual(self.ids(await self.room(tokens[3])), [last.event_id])
        # Nothing is known of what was before the event before that.
        self.assertEqual(len(self.ids(await self.room(tokens[0]))), 4)
        self.assertEqual(len(self.ids(await self.room(tokens[1]))), 3)
        self.assert_read("tails of rooms", "tails of rooms")

    async def test_what_a_writer_has_been_read_of_is_not_read_again(self) -> None:
        """The linear position may stay behind for as long as other writers are idle."""
        behind, event = await self.highest(), self.bob
        events = []
        for number in range(TAIL_EVENTS + 1):
            events.append(event := self.say(str(number), event))
        await self.persist(*events)
        since = PositionVector({"one": await self.highest()}, behind)
        await self.persist(last := self.say("last", event))
        upto = PositionVector({"one": await self.highest()}, behind)
        self.assertEqual(self.ids(await self.room(since, upto=upto)), [last.event_id])
        self.assert_read("tails of rooms")

    async def test_what_another_writer_wrote_before_is_read_with_it(self) -> None:
        two = await self.start_process("two")
        behind = await self.highest()
        await self.persist(first := self.say("first", self.bob), by=two)
        await self.persist(known := self.say("known", first))
        since = PositionVector({"one": await self.highest()}, behind)
        await self.persist(last := self.say("last", known))
        self.assertEqual(self.ids(await self.room(since)), [first.event_id, last.event_id])

    async def test_a_client_that_knows_less_of_a_writer_does_not_share_it(self) -> None:
        behind = await self.highest()
        await self.persist(known := self.say("known", self.bob))
        since = PositionVector({"one": await self.highest()}, behind)
        await self.persist(last := self.say("last", known))
        self.assertEqual(self.ids(await self.room(since)), [last.event_id])
        less = PositionVector({"two": await self.highest()}, behind)
        found = await self.room(less, upto=await self.now())
        self.assertEqual(self.ids(found), [known.event_id, last.event_id])

    async def test_a_change_of_the_room_is_read_at_once(self) -> None:
        before = await self.now()
        await self.persist(one := self.say("one", self.bob))
        await self.room(before)
        await self.persist(two := self.say("two", one))
        self.assertEqual(self.ids(await self.room(before)), [one.event_id, two.event_id])

    async def test_a_read_that_a_change_overtakes_is_not_kept(self) -> None:
        before = await self.now()
        await self.persist(one := self.say("one", self.bob))
        gate: Deferred[None] = Deferred()
        self.counted.gate = gate
        waiting = Deferred.fromCoroutine(self.room(before))
        await self.counted.held
        await self.persist(two := self.say("two", one))
        self.counted.gate = None
        self.assertEqual(self.ids(await self.room(before)), [one.event_id, two.event_id])
        gate.callback(None)
        await waiting
        self.assertEqual(self.ids(await self.room(before)), [one.event_id, two.event_id])

    async def test_nothing_is_kept_for_long(self) -> None:
        before = await self.now()
        await self.persist(self.say("one", self.bob))
        await self.room(before)
        self.assertGreater(self.tails.bytes_used, 0)
        self.clock.advance(MAX_AGE_S + 0.1)
        await self.room(before)
        self.assert_read("tails of rooms", "tails of rooms")

    async def test_memory_is_bounded(self) -> None:
        before = await self.now()
        await self.persist(self.say("x" * 20_000, self.bob))
        tails = RoomTails(TwistedScheduler(self.clock), self.database, 10_000)
        await tails.tails_of([self.make.room_id], before)
        self.assertEqual(tails.bytes_used, 0)

    async def test_an_error_reaches_all_who_wait(self) -> None:
        async def failing(name: str, work: Any, **options: Any) -> Any:
            raise ZeroDivisionError

        before = await self.now()
        await self.persist(message := self.say("one", self.bob))
        self.patch(self.counted, "run", failing)
        for _ in range(2):
            waiting = Deferred.fromCoroutine(self.room(before, upto=before))
            await self.assertFailure(waiting, ZeroDivisionError)
        del self.counted.run
        self.assertEqual(self.ids(await self.room(before)), [message.event_id])


class AnswersOfTails(TailsCase):
    """What they say, and what is asked of the tables."""

    async def test_an_event_after_which_a_member_was_not_in_the_room_is_hidden(self) -> None:
        before = await self.now()
        # Alice's server did not know yet that Bob had joined.
        await self.persist(forked := self.say("without Bob", self.carol))
        self.assertNotIn(self.make.room_id, (await self.since(before, BOB)).joined)
        self.assertEqual(self.ids(await self.room(before, CAROL)), [forked.event_id])

    async def test_somebody_who_has_left_meanwhile_is_not_told_of_it_as_a_member(self) -> None:
        before = await self.now()
        cites = [self.make.create, self.cites[2], self.bob]
        leave = self.make.event(
            "m.room.member", {"membership": "leave"}, [self.bob], cites, BOB, BOB
        )
        upto = await self.now()
        await self.persist(leave)
        found = await self.since(before, BOB, upto)
        self.assertEqual(found, RoomsUpdate(upto=upto))
        await self.persist(self.say("among us", leave))
        found = await self.since(before, BOB)
        self.assertEqual(found.joined, {})
        self.assertEqual(
            [e.event_id for e in found.left[self.make.room_id].timeline.events], [leave.event_id]
        )

    async def test_a_state_that_another_writer_had_changed_before_is_read_whole(self) -> None:
        two = await self.start_process("two")
        first = await self.highest()
        await self.persist(one := self.state("m.room.topic", {"topic": "1"}, self.bob), by=two)
        newer = self.state("m.room.topic", {"topic": "2"}, one)
        await self.persist(newer)
        # The process of the client was behind the second writer.
        since = PositionVector({"one": await self.highest()}, first)
        found = await self.room(since, state_after=True)
        self.assertEqual(self.ids(found), [one.event_id])
        topics = [each.event_id for each in found.state if each.type == "m.room.topic"]
        self.assertEqual(topics, [newer.event_id])

    async def test_more_than_a_tail_has_is_read_from_the_tables(self) -> None:
        before = await self.now()
        events = [self.bob]
        for number in range(TAIL_EVENTS + 1):
            events.append(self.say(str(number), events[-1]))
        await self.persist(*events[1:3])
        await self.persist(*events[3:])
        found = await self.room(before)
        self.assertTrue(found.timeline.limited)
        self.assertEqual(self.ids(found), [each.event_id for each in events[-10:]])
        self.assert_read("tails of rooms", "sync")

    async def test_a_gap_is_limited_and_has_the_changes_of_its_state(self) -> None:
        before = await self.now()
        topic = self.state("m.room.topic", {"topic": "1"}, self.bob)
        events = [topic]
        for number in range(12):
            events.append(self.say(str(number), events[-1]))
        await self.persist(*events)
        found = await self.room(before)
        self.assertTrue(found.timeline.limited)
        self.assertEqual(self.ids(found), [each.event_id for each in events[-10:]])
        self.assertEqual([each.event_id for each in found.state], [topic.event_id])
        self.assert_read("tails of rooms")

    async def test_a_timeline_begins_after_missed_events(self) -> None:
        before = await self.now()
        topic = self.state("m.room.topic", {"topic": "1"}, self.bob)
        await self.persist(topic, early := self.say("early", topic))
        between = await self.now()
        missed = self.state("m.room.topic", {"topic": "missed"}, early)
        late = self.say("late", missed)
        state = await self.store.state_ids_at(early.event_id)
        state = {**state, ("m.room.topic", ""): missed.event_id}
        outlier = IncomingEvent(missed, outlier=True)
        reported = IncomingEvent(late, state_before=state, checked_by_room=True)
        await self.persist(outlier, reported, last := self.say("last", late))
        for since, expected in ((before, [late, last]), (between, [late, last])):
            found = await self.room(since)
            self.assertTrue(found.timeline.limited)
            self.assertEqual(self.ids(found), [each.event_id for each in expected])
            topics = [each.event_id for each in found.state if each.type == "m.room.topic"]
            self.assertEqual(topics, [missed.event_id])
        after = await self.now()
        await self.persist(more := self.say("more", last))
        found = await self.room(after)
        self.assertFalse(found.timeline.limited)
        self.assertEqual(self.ids(found), [more.event_id])
        new = await self.timelines.initial(TimelineReader(BOB), await self.now(), NO_FILTER)
        room = new.joined[self.make.room_id]
        self.assertTrue(room.timeline.limited)
        self.assertEqual(self.ids(room), [late.event_id, last.event_id, more.event_id])

    async def test_lazy_clients_get_the_senders(self) -> None:
        before = await self.now()
        await self.persist(self.say("one", self.bob))
        wanted = ClientFilter(room=RoomFilter(state=RoomEventFilter(lazy_load_members=True)))
        found = await self.room(before, wanted=wanted)
        self.assertEqual([each.state_key for each in found.state], [ALICE])
        self.assertEqual((await self.room(before)).state, [])
        self.assert_read("tails of rooms")

    async def test_filters_and_ignored_users_are_those_of_the_client(self) -> None:
        before = await self.now()
        topic = self.state("m.room.topic", {"topic": "1"}, self.bob)
        message = self.say("one", topic)
        await self.persist(topic, message)
        both = [topic.event_id, message.event_id]

        async def ids(types: Collection[str] | None = None, **more: Any) -> list[str]:
            timeline = RoomEventFilter(types=None if types is None else tuple(types))
            wanted = ClientFilter(room=RoomFilter(timeline=timeline))
            return self.ids(await self.room(before, wanted=wanted, **more))

        self.assertEqual(await ids(), both)
        self.assertEqual(await ids(["m.room.mess*"]), [message.event_id])
        self.assertEqual(await ids(ignored=frozenset([ALICE])), [topic.event_id])
        self.assertEqual(await ids(ignored=frozenset([CAROL])), both)
        self.assertEqual(await ids(), both)
        self.assert_read("tails of rooms")

    async def test_what_a_member_did_changes_the_summary_of_the_others(self) -> None:
        before = await self.now()
        dave = self.join(USERS[3], self.bob)
        await self.persist(dave)
        found = [await self.room(before, user) for user in (ALICE, BOB, CAROL)]
        heroes = [each.summary.heroes for each in found if each.summary is not None]
        everybody = [ALICE, CAROL, BOB, USERS[3]]
        self.assertEqual(heroes, [[e for e in everybody if e != u] for u in (ALICE, BOB, CAROL)])
        self.assert_read("tails of rooms")
