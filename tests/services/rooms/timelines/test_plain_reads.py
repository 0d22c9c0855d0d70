"""Plain reads: the answers of transactions, and only where everything is plain."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

from twisted.internet import reactor

from simulator.rooms.random_rooms import USERS, RestlessRoom
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import SynreplError
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering
from synrepl.services.rooms.timelines.client_filter import RoomEventFilter
from synrepl.services.rooms.timelines.plain_reads import PlainReads
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import (
    ClientEvent,
    EventContext,
    MessagesPage,
    TimelineReader,
)
from synrepl.storage.database import Statements, Transaction
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.timelines.plain_rows import MOST_ENTRIES, PLAIN_SETTINGS
from synrepl.storage.store import DatabaseAway
from tests.services.rooms.timelines.test_room_tails import ALICE, BOB, CAROL, TailsCase
from tests.services.world import RecordingLog, manual_clock
from tests.storage.rooms.store_case import StoreCase

ROOMS = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "20"))


def plain_statements(case: Any) -> PostgresSingles:
    """A connection for plain reads, until the end of a test."""
    statements = PostgresSingles(reactor, case.dsn, "plain", PLAIN_SETTINGS)
    case.addCleanup(statements.close)
    return statements


class AwayStatements:
    """A connection that is lost."""

    async def run(self, *_: object) -> list[Any]:
        raise DatabaseAway(where="here", reason="it is lost")


class PlainOrNot(TailsCase):
    """Which reads need no transaction."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.read_by(plain_statements(self))

    def read_by(self, statements: Statements) -> None:
        """Read what is plain by these statements."""
        self.log = RecordingLog()
        self.plain = PlainReads(statements, self.timelines.clock, self.log)
        self.timelines = replace(self.timelines, plain=self.plain)

    async def members(self, user: str = BOB, **more: Any) -> list[str]:
        """The users with a membership, as one of them is told."""
        room_id, now = self.make.room_id, await self.now()
        found = await self.timelines.members(TimelineReader(user), room_id, now, **more)
        return sorted(each.state_key or "" for each in found)

    async def context(
        self, event_id: str, user: str = BOB, wanted: RoomEventFilter | None = None, **more: Any
    ) -> EventContext:
        """The events around one."""
        reader = TimelineReader(user, **more)
        return await self.timelines.context(
            reader, self.make.room_id, event_id, await self.now(), 4, wanted
        )

    async def said(self) -> list[str]:
        """Three messages."""
        event, found = self.bob, []
        for number in range(3):
            event = self.say(str(number), event)
            await self.persist(event)
            found.append(event.event_id)
        self.counted.names.clear()
        return found

    async def test_members_are_read_in_one_statement(self) -> None:
        self.assertEqual(await self.members(), sorted([ALICE, BOB, CAROL]))
        self.assertEqual(await self.members(membership="leave"), [])
        self.assert_read()

    async def test_members_at_the_end_of_the_room_are(self) -> None:
        self.assertEqual(await self.members(at=await self.now()), sorted([ALICE, BOB, CAROL]))
        self.assert_read()

    async def test_members_before_the_end_are_not(self) -> None:
        before = await self.now()
        await self.persist(self.say("hello", self.bob))
        await self.members(at=before)
        self.assert_read("members")

    async def test_the_events_around_one_are_read_in_one_statement(self) -> None:
        first, second, third = await self.said()
        found = await self.context(second)
        self.assertEqual([each.event_id for each in found.before], [first, self.bob.event_id])
        self.assertEqual([each.event_id for each in found.after], [third])
        self.assertEqual(len(found.state), 7)
        self.assert_read()

    async def test_a_page_is_read_in_one_statement(self) -> None:
        said = await self.said()
        page = await self.page(2)
        self.assertEqual([each.event_id for each in page.events], said[:0:-1])
        page = await self.page(2, page.end)
        self.assertEqual([each.event_id for each in page.events], [said[0], self.bob.event_id])
        self.assert_read()

    async def test_a_page_has_the_members_who_sent_it(self) -> None:
        await self.said()
        page = await self.page(2, wanted=RoomEventFilter(lazy_load_members=True))
        self.assertEqual([each.state_key for each in page.state], [ALICE])
        self.assert_read()

    async def test_pages_with_missing_history_are_not_plain(self) -> None:
        lost = self.say("lost", self.bob)
        await self.persist(self.say("hello", lost))
        self.sql(
            "INSERT INTO synrepl._backward_extremities (room_no, missing_id, child_no, is_followed)"
            " SELECT room_no, '$missing', max(event_no), false FROM synrepl._room_events"
            " WHERE stream_id IS NOT NULL GROUP BY room_no"
        )
        self.assertEqual((await self.page(2)).gaps, ["$missing"])
        self.assert_read("messages")

    async def page(self, limit: int, start: Any = None, **more: Any) -> MessagesPage:
        """A page back."""
        reader, now = TimelineReader(BOB), await self.now()
        return await self.timelines.messages(
            reader, self.make.room_id, now, start, limit=limit, **more
        )

    async def test_members_are_loaded_lazily(self) -> None:
        found = await self.context(
            (await self.said())[2], wanted=RoomEventFilter(lazy_load_members=True)
        )
        self.assertNotIn(CAROL, [each.state_key for each in found.state])
        self.assert_read()

    async def test_what_may_not_be_seen_around_an_event_is_not_plain(self) -> None:
        found = await self.context(self.bob.event_id)
        self.assertNotIn(self.carol.event_id, [each.event_id for each in found.before])
        self.assert_read("context")

    async def test_users_who_are_ignored_are_not_plain(self) -> None:
        first, *_ = await self.said()
        with self.assertRaises(SynreplError):
            await self.context(first, ignored=frozenset([ALICE]))
        self.assert_read("context")

    async def test_a_filter_of_types_is_not_plain(self) -> None:
        first, *_ = await self.said()
        await self.context(first, wanted=RoomEventFilter(types=["m.room.message"]))
        self.assert_read("context")

    async def test_a_redacted_event_is_not_plain(self) -> None:
        message = self.say("hello", self.bob)
        redaction = self.make.event(
            "m.room.redaction", {}, [message], self.cites[:3], redacts=message.event_id
        )
        await self.persist(message, redaction)
        found = await self.context(redaction.event_id)
        self.assertIn(b"redacted_because", found.before[0].json)
        self.assert_read("context")

    async def test_an_erased_sender_is_not_plain(self) -> None:
        first, *_ = await self.said()
        self.sql(f"INSERT INTO synrepl._erased_users (user_id) VALUES ('{ALICE}')")
        await self.context(first)
        self.assert_read("context")

    async def test_users_who_left_are_not_plain(self) -> None:
        left = self.make.event(
            "m.room.member",
            {"membership": "leave"},
            [self.bob],
            [self.make.create, self.cites[2], self.bob],
            BOB,
            BOB,
        )
        await self.persist(left)
        await self.members()
        self.assert_read("members")

    async def test_a_forgotten_room_is_not_plain(self) -> None:
        self.sql(
            "INSERT INTO synrepl._forgotten_rooms (room_no, user_id, event_no)"
            f" SELECT room_no, user_id, event_no FROM synrepl._memberships WHERE user_id = '{BOB}'"
        )
        with self.assertRaises(SynreplError):
            await self.members()
        self.assert_read("members")

    async def test_damage_is_told_as_a_transaction_tells_it(self) -> None:
        first, *_ = await self.said()
        self.sql("UPDATE synrepl._room_event_json SET raw = raw || ' '")
        with self.assertRaises(SynreplError):
            await self.context(first)
        with self.assertRaises(SynreplError):
            await self.members()
        self.assert_read("context", "members")

    async def test_a_state_that_lacks_an_entry_is_not_plain(self) -> None:
        first, *_ = await self.said()
        self.sql(
            "DELETE FROM synrepl._state_line WHERE slot = (SELECT max(slot) - 2 FROM synrepl._state_line)"
        )
        await self.context(first)
        self.assert_read("context")

    async def test_a_large_room_is_not_plain(self) -> None:
        event = self.bob
        joins = []
        for number in range(MOST_ENTRIES):
            event = self.join(f"@u{number}:test", event)
            joins.append(event)
        await self.persist(*joins)
        self.assertEqual(len(await self.members()), MOST_ENTRIES + 3)
        await self.context(event.event_id)
        self.assert_read("members", "context")

    async def test_texts_that_no_text_of_the_database_can_have_are_not_plain(self) -> None:
        with self.assertRaises(SynreplError):
            await self.context("$\0")

    async def test_a_lost_connection_leaves_it_to_a_transaction(self) -> None:
        first, *_ = await self.said()
        self.read_by(cast(Any, AwayStatements()))
        for _ in range(3):
            await self.context(first)
            await self.members()
        self.assert_read(*["context", "members"] * 3)
        self.assertEqual(self.plain.counts["context"], {"failed": 3})
        self.assertEqual(len(self.log.lines), 2, self.log.lines)
        self.assertIn("it is lost", self.log.lines[0][1])

    async def test_only_errors_are_logged(self) -> None:
        first, *_ = await self.said()
        await self.members()
        await self.page(2)
        await self.context(first, wanted=RoomEventFilter(types=["m.room.message"]))
        counts = {name: dict(each) for name, each in self.plain.counts.items()}
        expected = {"members": {"plain": 1}, "messages": {"plain": 1}, "context": {"special": 1}}
        self.assertEqual(counts, expected)
        self.assertEqual(self.log.lines, [])


class RandomPlainReads(StoreCase):
    """Both ways of reading compared."""

    timeout = 600 + 5 * ROOMS

    async def test_plain_reads_are_those_of_transactions(self) -> None:
        log = RecordingLog()
        plain = PlainReads(plain_statements(self), TwistedScheduler(manual_clock()), log)
        found = [await self.check(seed, plain) for seed in range(ROOMS)]
        for counts in zip(*found, strict=True):
            self.assertGreater(sum(counts), ROOMS)
        self.assertEqual(log.lines, [])

    async def check(self, seed: int, plain: PlainReads) -> tuple[int, int, int]:
        """One room; the numbers of plain reads of members, of events around one, and of pages."""
        rng = Random(seed)
        made = RestlessRoom(rng, rng.choice(["1", "6", "10", "11"]), f"room{seed}")
        events = [*made.events, *made.more(rng.randrange(10, 40))]
        await self.one.persist(made.room_id, made.version, [IncomingEvent(e) for e in events])
        clock = TwistedScheduler(manual_clock())
        timelines = Timelines(self.database, clock, RoomTails(clock, self.database))
        if rng.random() < 0.2:
            self.sql(
                f"INSERT INTO synrepl._erased_users (user_id) VALUES ('{rng.choice(USERS)}') ON CONFLICT DO NOTHING"
            )
        else:
            self.sql("DELETE FROM synrepl._erased_users")
        contexts = members = pages = 0
        for user in USERS:
            ignored = frozenset(rng.sample(USERS, 1) if rng.random() < 0.3 else ())
            reader = TimelineReader(user, "D", ignored - {user})
            for event in rng.sample(events, min(8, len(events))):
                upto = await self.vector(rng)
                wanted = RoomEventFilter(lazy_load_members=rng.random() < 0.3)
                asked = reader, made.room_id, event.event_id, upto, rng.choice([0, 1, 4, 50])
                context = await plain.context(*asked, wanted)
                if context is not None:
                    contexts += 1
                    expected = await timelines.context(*asked, wanted)
                    self.assertEqual(comparable(context), comparable(expected), (seed, asked))
                start = RoomToken(upto, rng.choice([None, await self.place(event.event_id)]))
                page = await plain.page(reader, made.room_id, start, asked[-1] or 2, wanted)
                if page is not None:
                    pages += 1
                    expected_page = await timelines.messages(
                        reader, made.room_id, upto, start, limit=asked[-1] or 2, wanted=wanted
                    )
                    self.assertEqual(list(expected_page.gaps), [])
                    page = replace(page, state=by_id(page.state))
                    expected_page = replace(
                        expected_page, state=by_id(expected_page.state), gaps=()
                    )
                    self.assertEqual(page, expected_page, (seed, asked))
            at = rng.choice([None, await self.vector(rng)])
            found = await plain.members(reader, made.room_id, at)
            if found is not None:
                members += 1
                told = await timelines.members(reader, made.room_id, await self.vector(rng), at)
                self.assertEqual(by_id(found), by_id(told), (seed, user))
        return members, contexts, pages

    async def place(self, event_id: str) -> EventOrdering | None:
        """The ordering of an event; None of an outlier."""

        def work(txn: Transaction) -> EventOrdering | None:
            txn.execute(
                "SELECT topological, stream_id FROM synrepl._room_events WHERE event_id = %s",
                (event_id,),
            )
            found = txn.fetchone_or_none()
            return None if found is None or found[1] is None else EventOrdering(*found)

        return await self.read(work)

    async def vector(self, rng: Random) -> PositionVector:
        """The vector of everything, or of a part that has one writer's events up to the end."""

        def work(txn: Transaction) -> int:
            return int(txn.execute("SELECT max(stream_id) FROM synrepl.events").fetchone()[0])

        last = await self.read(work)
        linear = rng.choice([last, last, last - rng.randrange(10)])
        return PositionVector(
            {"one": last - rng.randrange(3)} if rng.random() < 0.3 else {}, linear
        )


def by_id(events: Sequence[ClientEvent]) -> list[ClientEvent]:
    """Events of a state, in an order of their own."""
    return sorted(events, key=lambda each: each.event_id)


def comparable(context: EventContext) -> EventContext:
    """The same with its state in an order of its own."""
    return replace(context, state=by_id(context.state))
