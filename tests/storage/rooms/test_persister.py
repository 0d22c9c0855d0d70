"""The persister with real writers: several processes, lost answers, limits, damaged rows."""

from __future__ import annotations

from random import Random
from threading import get_ident
from typing import Any, ClassVar

from twisted.internet.defer import Deferred, gatherResults

from simulator.rooms.random_rooms import RandomRoom
from synrepl.core.tokens import Range
from synrepl.rooms import Event, OtherRoom, Room, StateKey, UnknownEvents
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.limits import (
    ResolutionTooLarge,
    RoomLimits,
    TooManyExtremities,
)
from synrepl.storage.rooms.tables.events import (
    CorruptEvent,
    MissingJson,
    checksum,
    events_by_id,
    parsed_events,
    raw_json,
)
from synrepl.storage.rooms.tables.incoming import (
    EventOutcome,
    IncomingEvent,
    NotStorable,
    PersistedBatch,
)
from synrepl.storage.rooms.tables.numbers import OtherRoomVersion, UnknownRoom, require_room
from synrepl.storage.rooms.tables.waiting import missing_events
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.events import EVENTS, AllStateRow, EventRow, StateRow
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.store_case import PersistingProcess, StoreCase

EVERY = 1 << 40


class Persisting(StoreCase):
    """One room, made by hand."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.small = SmallRoom("10")
        self.room_id = self.small.create.room_id

    async def persist(
        self, *events: Event | IncomingEvent, by: PersistingProcess | None = None
    ) -> PersistedBatch:
        return await (by or self.one).persist(self.room_id, self.small.version, events)

    async def base(self) -> None:
        await self.persist(*self.small.base, self.small.carol)

    def outcomes(self, done: PersistedBatch) -> list[str]:
        return [str(each.outcome) for each in done.events]

    async def test_facts_have_the_stream_ids_of_events_and_tell_of_the_state(self) -> None:
        await self.base()
        topic = self.small.topic(self.small.carol)
        done = await self.persist(topic, self.small.message(topic))
        page = await self.one.process.store.page(EVENTS, Range(0, EVERY), None, 100)
        fact = next(each for each in page.facts if each.token == done.events[0].stream_id)
        self.assertEqual(
            fact.rows,
            (
                EventRow(topic.event_id, self.room_id, "m.room.topic", "", None, None),
                StateRow(self.room_id, "m.room.topic", "", topic.event_id),
            ),
        )
        self.assertEqual(len(page.facts), 7)
        caches = await self.one.process.store.page(CACHES, Range(0, EVERY), None, 100)
        (first, second) = [each.rows[0] for each in caches.facts]
        assert isinstance(first, CachesRow)
        assert isinstance(second, CachesRow)
        self.assertEqual(first.keys, [self.room_id, "@alice:a", "@carol:a"])
        self.assertEqual(second.keys, [self.room_id])
        memberships = self.sql(
            "SELECT array_agg(stream_id ORDER BY stream_id) FROM synrepl._memberships"
        )
        tokens = [each.token for each in page.facts]
        self.assertEqual(memberships, [tokens[1], tokens[4]])

    async def test_many_changes_of_the_state_are_told_as_one_row(self) -> None:
        await self.base()
        last, events = self.small.carol, []
        cites = [self.small.create, self.small.levels, self.small.alice]
        for number in range(160):
            last = self.small.event("t", {}, [last], cites, key=str(number))
            events.append(last)
        await self.persist(*events)
        page = await self.one.process.store.page(EVENTS, Range(5, EVERY), None, 1000)
        rows = [row for fact in page.facts for row in fact.rows]
        self.assertEqual([each for each in rows if isinstance(each, StateRow)], [])
        self.assertEqual(
            [each for each in rows if isinstance(each, AllStateRow)], [AllStateRow(self.room_id)]
        )

    async def test_two_processes_persist_into_one_room_at_once(self) -> None:
        two = await self.start_process("two")
        made = RandomRoom(Random(11), "10")
        made.more(240)
        events = made.events
        self.small.version = made.version
        self.room_id = made.room_id
        await self.persist(*events[:20])
        shares = [events[20::2], events[21::2]]
        calls = [
            process.persist(made.room_id, made.version, share[at : at + 10])
            for process, share in zip((self.one, two), shares, strict=True)
            for at in range(0, len(share), 10)
        ]
        await gatherResults([Deferred.fromCoroutine(each) for each in calls])
        stored = self.sql("SELECT array_agg(event_id ORDER BY stream_id) FROM synrepl._room_events")
        self.assertEqual(sorted(stored), sorted(each.event_id for each in events))
        by_id = {each.event_id: each for each in events}
        room = Room(made.version)
        for event_id in stored:  # the order that came about
            room.receive(by_id[event_id])
        await self.check_equal(room)

    async def test_an_answer_that_was_lost_is_asked_for_again(self) -> None:
        await self.base()
        message = self.small.message(self.small.carol)
        first = await self.persist(message)
        self.one.forget()
        again = await self.persist(message)
        self.assertEqual(self.outcomes(again), ["known"])
        self.assertEqual(again.events[0].stream_id, first.events[0].stream_id)

    async def test_events_wait_over_a_restart_for_what_is_missing(self) -> None:
        middle = self.small.message(self.small.carol)
        last = self.small.topic(middle)
        done = await self.persist(last, middle)
        self.assertEqual(self.outcomes(done), ["waiting", "waiting"])
        self.assertEqual(
            done.events[0].missing,
            sorted([middle.event_id, self.small.create.event_id, self.small.alice.event_id]),
        )
        room_no = self.sql("SELECT room_no FROM synrepl._rooms")
        missing = await self.read(lambda txn: missing_events(txn, room_no))
        self.assertEqual(
            missing,
            {
                self.small.carol.event_id,
                self.small.create.event_id,
                self.small.alice.event_id,
            },
        )
        self.one.forget()
        done = await self.persist(*self.small.base)
        self.assertEqual(len(done.judged), 4)
        done = await self.persist(self.small.carol)
        self.assertEqual(
            [each.event_id for each in done.judged],
            [self.small.carol.event_id, middle.event_id, last.event_id],
        )
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._waiting_events"), 0)

    async def test_the_number_of_waiting_events_is_limited(self) -> None:
        two = await self.start_process("two", RoomLimits(max_waiting=3))
        waiting = [self.small.message(self.small.carol) for _ in range(5)]
        await self.persist(*waiting, by=two)
        kept = self.sql(
            "SELECT array_agg(event_id ORDER BY waiting_no) FROM synrepl._waiting_events"
        )
        self.assertEqual(kept, [each.event_id for each in waiting[2:]])
        await self.persist(*self.small.base, by=two)
        done = await self.persist(self.small.carol, by=two)
        self.assertEqual(len(done.judged), 4)

    async def test_an_event_that_would_be_one_forward_extremity_too_many_is_refused(self) -> None:
        two = await self.start_process("two", RoomLimits(max_extremities=3))
        small = self.small
        await self.persist(*small.base, small.carol, by=two)
        branches = [small.message(small.rules) for _ in range(3)]
        done = await self.persist(*branches, by=two)
        self.assertEqual(
            [each.outcome for each in done.events],
            [EventOutcome.ACCEPTED, EventOutcome.ACCEPTED, EventOutcome.REFUSED],
        )
        error = done.events[2].error
        self.assertIsInstance(error, TooManyExtremities)
        self.assertIn(branches[2].event_id, str(error))
        self.assertEqual(two.persister.refused["max_extremities"], 1)
        # What follows an extremity is taken, and then there is a place for the other one.
        joined = small.message(small.carol, *branches[:2])
        done = await self.persist(joined, branches[2], by=two)
        self.assertEqual([each.outcome for each in done.events], [EventOutcome.ACCEPTED] * 2)

    async def test_an_event_that_others_wait_for_is_no_forward_extremity_too_many(self) -> None:
        two = await self.start_process("two", RoomLimits(max_extremities=1))
        small = self.small
        await self.persist(*small.base, small.carol, by=two)
        missing = small.message(small.rules)
        last = small.message(missing, small.carol)
        await self.persist(last, by=two)
        done = await self.persist(missing, by=two)
        self.assertEqual(done.events[0].outcome, EventOutcome.ACCEPTED)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._forward_extremities"), 1)

    async def test_history_is_taken_whatever_the_number_of_forward_extremities(self) -> None:
        two = await self.start_process("two", RoomLimits(max_extremities=1))
        small = self.small
        await self.persist(*small.base, small.carol, by=two)
        old = IncomingEvent(small.message(small.rules), live=False)
        done = await self.persist(old, by=two)
        self.assertEqual(done.events[0].outcome, EventOutcome.ACCEPTED)

    async def test_a_resolution_that_is_too_large_is_refused_by_name(self) -> None:
        two = await self.start_process("two", RoomLimits(max_resolved=5))
        small = self.small
        await self.persist(*small.base, small.carol, by=two)
        sides: list[list[Event]] = []
        for side in range(2):
            last, made = small.carol, []
            for number in range(6):
                content, cites = {"side": side}, [small.create, small.alice, small.levels]
                last = small.event("org.example.entry", content, [last], cites, key=str(number))
                made.append(last)
            sides.append(made)
        done = await self.persist(*sides[0], by=two)
        self.assertEqual({each.outcome for each in done.events}, {EventOutcome.ACCEPTED})
        # Only the event that makes the fork is refused: what follows it waits, and the rest is taken.
        topic = small.topic(sides[0][-1])
        done = await self.persist(*sides[1], topic, by=two)
        waiting = [EventOutcome.WAITING] * 5
        outcomes = [each.outcome for each in done.events]
        self.assertEqual(outcomes, [EventOutcome.REFUSED, *waiting, EventOutcome.ACCEPTED])
        self.assertIsInstance(done.events[0].error, ResolutionTooLarge)
        self.assertIn("'max_resolved'", str(done.events[0].error))
        self.assertEqual(two.persister.refused["max_resolved"], 1)
        # A process with a higher limit takes it, and then only what needs the resolution is refused.
        done = await self.persist(sides[1][0])
        self.assertEqual([each.outcome for each in done.judged], [EventOutcome.ACCEPTED] * 6)
        joined = small.message(sides[0][-1], sides[1][-1])
        two.forget()
        done = await self.persist(joined, by=two)
        self.assertIsInstance(done.events[0].error, ResolutionTooLarge)
        self.assertEqual(two.persister.refused["max_resolved"], 1)

    async def test_an_outlier_becomes_a_full_event(self) -> None:
        outliers = [IncomingEvent(each, outlier=True) for each in self.small.base]
        done = await self.persist(*outliers)
        self.assertEqual({each.stream_id for each in done.events}, {None})
        self.assertEqual(
            self.sql("SELECT count(*) FROM synrepl.events"), 0, "an outlier is in no stream"
        )
        done = await self.persist(*self.small.base)
        self.assertEqual(self.outcomes(done), ["accepted"] * 4)
        room = Room(self.small.version)
        for each in self.small.base:
            room.receive(each)
        await self.check_equal(room)

    async def test_an_event_waits_until_the_outlier_that_it_follows_has_its_state(self) -> None:
        await self.base()
        missing = self.small.message(self.small.carol)
        outlier = self.small.message(missing)
        last = self.small.message(outlier)
        done = await self.persist(IncomingEvent(outlier, outlier=True), last)
        self.assertEqual(self.outcomes(done), ["accepted", "waiting"])
        self.one.forget()
        done = await self.persist(outlier, missing)
        self.assertEqual(
            [each.event_id for each in done.judged],
            [each.event_id for each in (missing, outlier, last)],
        )

    async def test_a_prev_event_that_comes_after_a_restart_is_no_forward_extremity(self) -> None:
        await self.base()
        state = self.small.state(*self.small.base, self.small.carol)
        missing = self.small.message(self.small.carol)
        last = self.small.message(missing)
        done = await self.persist(IncomingEvent(last, state_before=state))
        self.one.forget()
        await self.persist(missing)
        self.assertEqual(
            self.sql("SELECT array_agg(event_no) FROM synrepl._forward_extremities"),
            [done.events[0].event_no],
        )

    async def test_a_redaction_comes_before_its_target(self) -> None:
        await self.base()
        target = self.small.message(self.small.carol)
        redaction = self.small.event(
            "m.room.redaction",
            {},
            [self.small.carol],
            [self.small.create, self.small.levels, self.small.alice],
            redacts=target.event_id,
        )
        await self.persist(redaction)
        self.one.forget()
        await self.persist(target)
        redacted = self.sql(
            "SELECT redacted_by = (SELECT event_no FROM synrepl._room_events WHERE event_id = %s)"
            " FROM synrepl._room_events WHERE event_id = %s",
            redaction.event_id,
            target.event_id,
        )
        self.assertIs(redacted, True)
        self.assertEqual(self.sql("SELECT unapplied FROM synrepl._room_heads"), 0)
        raw = self.sql(
            "SELECT raw FROM synrepl._room_event_json JOIN synrepl._room_events USING (event_no)"
            " WHERE event_id = %s",
            target.event_id,
        )
        self.assertEqual(bytes(raw), target.raw)

    async def test_events_are_judged_while_the_reactor_does_other_things(self) -> None:
        await self.base()

        class NoticedState(dict[StateKey, str]):
            """A state that notices who looks at it."""

            threads: ClassVar[set[int]] = set()

            def items(self) -> Any:
                self.threads.add(get_ident())
                return super().items()

        state = NoticedState(self.small.state(*self.small.base, self.small.carol))
        message = self.small.message(self.small.message(self.small.carol))
        await self.persist(IncomingEvent(message, state_before=state))
        self.assertEqual(len(NoticedState.threads), 1)
        self.assertNotIn(get_ident(), NoticedState.threads)

    async def test_a_backfilled_event_has_a_negative_stream_id(self) -> None:
        await self.base()
        state = self.small.state(*self.small.base, self.small.carol)
        missing = self.small.message(self.small.carol)
        join = self.small.message(missing)
        await self.persist(IncomingEvent(join, state_before=state))
        self.assertEqual(
            self.sql("SELECT missing_id FROM synrepl._backward_extremities"), missing.event_id
        )
        done = await self.persist(IncomingEvent(missing, live=False, backfilled=True))
        self.assertEqual(done.events[0].stream_id, -1)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._backward_extremities"), 0)
        self.assertEqual(
            self.sql(
                "SELECT prev_nos[1] FROM synrepl._room_events WHERE event_id = %s", join.event_id
            ),
            done.events[0].event_no,
        )
        self.assertEqual(self.sql("SELECT stream_id FROM synrepl.backfill"), -1)

    async def test_what_cannot_be_judged_or_stored_is_refused_by_name(self) -> None:
        await self.base()
        other = SmallRoom("10").made
        other.room_id = "!other:a"
        stranger = other.event("m.room.message", {}, prev=(), auth=())
        nul = self.small.event("t\0", {}, [self.small.carol], [self.small.create, self.small.alice])
        unknown = self.small.message(self.small.message(self.small.carol))
        early = self.small.event("t", {}, [], [unknown])
        done = await self.persist(
            stranger,
            nul,
            IncomingEvent(early, outlier=True),
            IncomingEvent(unknown, state_before={("t", ""): "$nowhere"}),
            self.small.message(self.small.carol),
        )
        self.assertEqual(self.outcomes(done), ["refused"] * 4 + ["accepted"])
        errors = [type(each.error) for each in done.events[:4]]
        self.assertEqual(errors, [OtherRoom, NotStorable, UnknownEvents, UnknownEvents])
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._room_events"), 6)
        with self.assertRaises(OtherRoomVersion):
            await self.one.persister.persist(self.room_id, "9", [])
        with self.assertRaises(UnknownRoom):
            await self.read(lambda txn: require_room(txn, "!other:a"))

    async def test_an_id_that_another_room_has_is_refused(self) -> None:
        """Servers choose the IDs of version 1."""
        one, two = SmallRoom("1"), SmallRoom("1")
        await self.one.persist(one.create.room_id, one.version, [*one.base])
        two.made.room_id = "!second:a"
        message = two.made.event("m.room.create", {"creator": "@alice:a"}, state_key="", prev=())
        clash = two.made.event("m.room.message", {}, prev=(), auth=(), event_id=one.alice.event_id)
        done = await self.one.persist("!second:a", two.version, [message, clash])
        self.assertEqual(
            [each.outcome for each in done.events], [EventOutcome.ACCEPTED, EventOutcome.REFUSED]
        )
        self.assertIsInstance(done.events[1].error, OtherRoom)

    async def test_bytes_that_are_not_the_event_are_never_served(self) -> None:
        await self.base()
        event_id = self.small.carol.event_id
        self.sql(
            "UPDATE synrepl._room_event_json SET raw = convert_to(replace(convert_from(raw, 'UTF8'),"
            " 'join', 'ban'), 'UTF8') WHERE event_no ="
            " (SELECT event_no FROM synrepl._room_events WHERE event_id = %s)",
            event_id,
        )

        with self.assertRaisesRegex(CorruptEvent, "checksum"):
            await self.read(lambda txn: raw_json(txn, events_by_id(txn, [event_id]).values()))
        self.one.forget()
        member = self.small.event(
            "m.room.message",
            {},
            [self.small.carol],
            [self.small.create, self.small.carol],
            "@carol:a",
        )
        with self.assertRaises(CorruptEvent):
            await self.persist(member)
        # Whoever writes the checksum, too, does not get the ID of the event.
        swapped = self.small.alice.raw
        self.sql(
            "UPDATE synrepl._room_event_json SET raw = %s, checksum = %s WHERE event_no ="
            " (SELECT event_no FROM synrepl._room_events WHERE event_id = %s)",
            swapped,
            checksum(event_id, swapped),
            event_id,
        )

        def parsed(txn: Transaction) -> object:
            return parsed_events(txn, self.small.version, [*events_by_id(txn, [event_id]).values()])

        with self.assertRaisesRegex(CorruptEvent, "their ID is"):
            await self.read(parsed)
        self.sql("DELETE FROM synrepl._room_event_json")
        with self.assertRaises(MissingJson):
            await self.read(parsed)

    async def test_a_room_is_opened_without_reading_all_of_it(self) -> None:
        await self.base()
        last, events = self.small.carol, []
        cites = [self.small.create, self.small.levels, self.small.alice]
        for number in range(400):
            last = self.small.event("t", {}, [last], cites, key=str(number))
            events.append(last)
        await self.persist(*events)
        self.one.forget()
        await self.persist(self.small.event("m.room.message", {}, [last], cites))
        room_no, epoch, revision = (
            self.sql(f"SELECT {column} FROM synrepl._rooms")
            for column in ("room_no", "epoch", "revision")
        )
        memory = self.one.persister.memories.take(self.room_id, room_no, epoch, revision)
        self.assertIsNotNone(memory.heads, "it is remembered")
        self.assertLess(len(memory.rows), 12)
        self.assertLess(len(memory.keys), 12)
        self.assertLess(len(memory.groups.groups), 60)
