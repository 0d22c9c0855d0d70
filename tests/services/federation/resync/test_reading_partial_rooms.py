"""What clients get of a room while it is partial, and when it is complete."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

import orjson
from twisted.internet.defer import CancelledError, Deferred

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Certainty, Event
from synrepl.services.rooms.full_state_wait import FullStateWait
from synrepl.services.rooms.news.recent_changes import ChangeKind
from synrepl.services.rooms.timelines.client_filter import (
    NO_FILTER,
    ClientFilter,
    RoomEventFilter,
    RoomFilter,
)
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import RoomsUpdate, TimelineReader
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.partial_states import (
    StateNotKnownYet,
    resync_progress,
    resyncs,
    state_certainty,
)
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.caches import CachesRow
from synrepl.streams.synapse.un_partial_stated_room import (
    IS_PARTIAL_CACHE,
    UnPartialStatedRoomRow,
)
from tests.services.federation.joining_server import HERE, US
from tests.services.federation.resync.resync_case import ALICE, ResyncCase

T = TypeVar("T")

LAZY = ClientFilter(room=RoomFilter(state=RoomEventFilter(lazy_load_members=True)))


class ReadingPartialRooms(ResyncCase):
    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.scheduler = self.one.process.scheduler
        tails = RoomTails(self.scheduler, self.database)
        self.timelines = Timelines(self.database, self.scheduler, tails)
        self.waits = FullStateWait(self.scheduler)
        self.reader = TimelineReader(US)

    @property
    def now(self) -> PositionVector:
        return PositionVector(
            linear=self.sql("SELECT coalesce(max(stream_id), 0) FROM synrepl.events")
        )

    async def sync(self, since: PositionVector | None, wanted: ClientFilter) -> RoomsUpdate:
        if since is None:
            return await self.timelines.initial(self.reader, self.now, wanted)
        return await self.timelines.since(self.reader, since, self.now, None, wanted)

    def started(self, read: Awaitable[T]) -> Deferred[T]:
        async def run() -> T:
            return await read

        return Deferred.fromCoroutine(run())

    async def entry(self, room: HostedRoom, kind: str, key: str = "") -> dict[str, Any]:
        found = await self.timelines.state_entry(self.reader, room.room_id, kind, key, self.now)
        return dict(orjson.loads(found.json)["content"])

    async def receive_with_members(self, room: HostedRoom, event: Event) -> None:
        """An event comes, with the memberships that it cites."""
        cited = [IncomingEvent(room.event(e), outlier=True) for e in event.auth_event_ids]
        version = event.version.name
        await self.one.persister.persist(room.room_id, version, [*cited, IncomingEvent(event)])

    # -- states ---------------------------------------------------------------------------

    async def test_what_is_known_is_answered_at_once(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        self.assertEqual((await self.entry(room, "m.room.create"))["room_version"], "10")
        self.assertEqual((await self.entry(room, "m.room.member", US))["membership"], "join")
        self.assertEqual(
            await self.timelines.joined_rooms(US, self.now),
            [room.room_id],
        )

    async def test_how_certain_an_answer_is_depends_on_the_keys(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        create, levels = ("m.room.create", ""), ("m.room.power_levels", "")
        ours, theirs = ("m.room.member", US), ("m.room.member", ALICE)

        def check(txn: Transaction) -> list[Certainty]:
            number = require_room(txn, room.room_id).room_no
            asked = [[create], [create, levels], [ours], [levels, theirs], None, []]
            return [state_certainty(txn, number, each, HERE) for each in asked]

        final, provisional, unknown = Certainty
        self.assertEqual(
            await self.read(check), [final, provisional, provisional, unknown, unknown, final]
        )
        await self.here.complete()
        self.assertEqual(await self.read(check), [final] * 6)

    async def test_members_and_whole_states_are_refused_as_long_as_they_are_unknown(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        upto, room_id, read = self.now, room.room_id, self.timelines
        for wanted, what in (
            (read.members(self.reader, room_id, upto), "the members"),
            (read.joined_members(self.reader, room_id, upto), "the members"),
            (read.state(self.reader, room_id, upto), "the state"),
            (
                read.state_entry(self.reader, room_id, "m.room.member", ALICE, upto),
                f"the membership of {ALICE}",
            ),
        ):
            error: Any = await self.assertFailure(self.started(wanted), StateNotKnownYet)
            self.assertIn(f"not all of {what} of room {room_id} is known yet", str(error))
            self.assertIn("asking which events its state has", str(error))
            self.assertEqual(error.facts["retry_after_ms"], 1000)
        await self.here.complete()
        self.assertEqual(
            {each.user_id for each in await read.joined_members(self.reader, room_id, self.now)},
            {
                key
                for (kind, key), event_id in room.room.current_state().items()
                if kind == "m.room.member" and room.event(event_id).membership == "join"
            },
        )

    # -- waits ----------------------------------------------------------------------------

    def members(self, room: HostedRoom) -> Deferred[int]:
        async def read() -> int:
            return len(await self.timelines.joined_members(self.reader, room.room_id, self.now))

        return self.started(self.waits.read(room.room_id, read))

    async def until_waiting(self, count: int = 1) -> None:
        while len(self.waits) != count:
            await self.tick()

    async def test_who_waits_is_woken_when_the_room_is_complete(self) -> None:
        facts = {
            "un_partial_stated_room": lambda room: UnPartialStatedRoomRow(room),
            "caches": lambda room: CachesRow(IS_PARTIAL_CACHE, [room], 1),
        }
        for stream, row in facts.items():
            room = await self.shared_room()
            await self.join(room)
            waiting = [self.members(room) for _ in range(3)]
            await self.until_waiting(3)
            self.waits.applied(stream, "one", [Fact(1, "one", (row("!other:a"),))])
            self.assertEqual(len(self.waits), 3)
            await self.here.complete()
            self.waits.applied(stream, "one", [Fact(2, "one", (row(room.room_id),))])
            self.assertEqual(len(self.waits), 0)
            self.assertEqual([await each for each in waiting], [11] * 3)
            await self.empty()
            for server in (self.a, self.b):
                server.rooms.clear()

    async def test_who_waits_looks_again_when_facts_may_be_missing(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        waiting = self.members(room)
        await self.until_waiting()
        await self.here.complete()
        self.waits.unknown_upto("un_partial_stated_room", "one", 5)
        self.assertEqual(await waiting, 11)

    async def test_a_wait_ends_with_an_error_that_says_why(self) -> None:
        for server in (self.a, self.b):
            server.faults.append(ServerFault("state_ids", FaultKind.BROKEN))
        room = await self.shared_room()
        await self.join(room)
        await self.here.complete()
        self.waits = FullStateWait(self.scheduler, timeout_s=0.05)
        error = await self.assertFailure(self.members(room), StateNotKnownYet)
        self.assertIn("waiting after 1 attempts, none of the servers", str(error))
        self.assertEqual(len(self.waits), 0)

    async def test_a_wait_can_be_cancelled(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        waiting = self.members(room)
        await self.until_waiting()
        waiting.cancel()
        await self.assertFailure(waiting, CancelledError)
        self.assertEqual(len(self.waits), 0)
        self.waits.applied(
            "caches", "one", [Fact(1, "one", (CachesRow(IS_PARTIAL_CACHE, None, 1),))]
        )

    # -- progress -------------------------------------------------------------------------

    async def test_the_progress_of_a_room_is_told_in_each_phase(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        (found,) = await self.read(lambda txn: resyncs(txn, 10))
        self.assertEqual((found.room_id, found.joined_via), (room.room_id, "a"))
        self.assertEqual((found.phase, found.servers, found.left), (ResyncPhase.IDS, 5, 1))
        self.assertIsNone(found.eta_s)
        for phase, words in {
            "events": "fetching its state, 250 of 1000 missing events",
            "judge": "judging 1 events again",
            "verify": "verifying its state",
            "swap": "almost done",
        }.items():
            self.sql(
                "UPDATE synrepl._resync_jobs SET phase = %s, missing = 1000, stored = 250,"
                " phase_at = now() - interval '10 s'",
                phase,
            )
            (found,) = await self.read(lambda txn: resyncs(txn, 10))
            self.assertEqual(found.sentence, words)
            assert found.eta_s is not None
            self.assertApproximates(found.eta_s, 31 if phase == "events" else 1, 2)
        self.sql("UPDATE synrepl._resync_jobs SET phase = 'ids'")
        await self.here.complete()
        self.assertEqual(await self.read(lambda txn: resyncs(txn, 10)), [])
        (found,) = await self.read(lambda txn: resyncs(txn, 10, ended=True))
        self.assertEqual((found.sentence, found.eta_s, found.left), ("done", 0.0, 0))
        number = self.sql("SELECT room_no FROM synrepl._rooms")
        same = await self.read(lambda txn: resync_progress(txn, number))
        assert same is not None
        self.assertEqual(same[:10], found[:10])

    # -- syncs ----------------------------------------------------------------------------

    async def test_clients_that_load_members_lazily_get_the_room_at_once(self) -> None:
        room = await self.shared_room()
        before = self.now
        await self.join(room)
        spoken = self.a.send(room.room_id, "m.room.message", "@u1:c", {"body": "hi"})
        await self.receive_with_members(room, spoken)
        for since in (None, before):
            update = await self.sync(since, LAZY)
            joined = update.joined[room.room_id]
            self.assertIsNone(joined.summary)
            self.assertIn(spoken.event_id, [each.event_id for each in joined.timeline.events])
            members = {e.state_key for e in joined.state if e.type == "m.room.member"}
            self.assertIn("@u1:c", members)  # although no state has it
            self.assertNotIn("@u2:d", members)
        later = self.now
        more = self.a.send(room.room_id, "m.room.message", "@u2:d", {"body": "hi"})
        await self.receive_with_members(room, more)
        update = await self.sync(later, LAZY)
        joined = update.joined[room.room_id]
        self.assertEqual([each.event_id for each in joined.timeline.events], [more.event_id])
        self.assertEqual([each.state_key for each in joined.state], ["@u2:d"])
        page = await self.timelines.messages(
            self.reader,
            room.room_id,
            self.now,
            None,
            wanted=RoomEventFilter(lazy_load_members=True),
        )
        self.assertEqual({each.state_key for each in page.state}, {US, "@u1:c", "@u2:d"})
        later = self.now
        await self.here.complete()
        joined = (await self.sync(later, LAZY)).joined[room.room_id]
        self.assertFalse(joined.is_new)
        assert joined.summary is not None
        self.assertEqual(joined.summary.joined, 11)

    async def test_others_get_it_when_it_is_complete_as_newly_joined(self) -> None:
        room = await self.shared_room()
        before = self.now
        await self.join(room)
        partial = self.now
        for since in (None, before, partial):
            self.assertTrue((await self.sync(since, NO_FILTER)).is_empty)
        await self.receive(self.a.send(room.room_id, "m.room.message", ALICE, {"body": "hi"}))
        self.assertTrue((await self.sync(partial, NO_FILTER)).is_empty)
        last = self.now
        await self.here.complete()
        for since in (None, before, partial, last):
            joined = (await self.sync(since, NO_FILTER)).joined[room.room_id]
            self.assertEqual(joined.is_new, True)
            self.assertEqual(len(joined.timeline.events), 2)
            members = [each for each in joined.state if each.type == "m.room.member"]
            self.assertEqual(len(members), 10)  # the eleventh is in the timeline
        behind = await self.timelines.since(self.reader, before, last, None, NO_FILTER)
        self.assertTrue(behind.is_empty)  # as of a position at which it was partial
        self.assertTrue((await self.sync(self.now, NO_FILTER)).is_empty)

    async def test_a_room_that_becomes_partial_again_says_nothing_to_others_meanwhile(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.here.complete()
        whole = self.now
        self.a.send(room.room_id, "m.room.message", ALICE, {"body": "unheard"})
        await self.here.join(room.room_id, "a", "@them:here")
        self.assertTrue((await self.sync(whole, NO_FILTER)).is_empty)
        await self.a.outgoing.send_all()
        await self.here.complete()
        joined = (await self.sync(whole, NO_FILTER)).joined[room.room_id]
        self.assertTrue(joined.is_new)
        self.assertTrue(joined.timeline.limited)  # it begins behind what was missed
        self.assertEqual([each.type for each in joined.timeline.events], ["m.room.member"])
        self.assertEqual(len([e for e in joined.state if e.type == "m.room.member"]), 11)

    async def test_shared_tails_of_rooms_tell_nothing_of_partial_ones(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        partial = self.now
        spoken = self.a.send(room.room_id, "m.room.message", "@u1:c", {"body": "hi"})
        await self.receive_with_members(room, spoken)
        self.assertTrue((await self.named(room, partial, NO_FILTER)).is_empty)
        joined = (await self.named(room, partial, LAZY)).joined[room.room_id]
        self.assertEqual([each.state_key for each in joined.state], ["@u1:c"])
        before = self.now
        await self.here.complete()
        for since, wanted in ((partial, NO_FILTER), (before, LAZY)):
            joined = (await self.named(room, since, wanted)).joined[room.room_id]
            assert joined.summary is not None
            self.assertEqual(joined.summary.joined, 11)
        complete = self.now
        await self.receive(self.a.send(room.room_id, "m.room.message", ALICE, {"body": "hi"}))
        joined = (await self.named(room, complete, NO_FILTER)).joined[room.room_id]
        self.assertTrue(joined.is_shared)

    async def named(
        self, room: HostedRoom, since: PositionVector, wanted: ClientFilter
    ) -> RoomsUpdate:
        """What is new in a room of which a process has heard, but for the membership of the user."""
        now = self.now
        self.timelines.tails.changed(ChangeKind.ROOM, "one", now.linear, room.room_id)
        return await self.timelines.since(
            self.reader, since, now, [room.room_id], wanted, memberships_changed=False
        )

    async def test_who_leaves_a_partial_room_is_told(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        partial = self.now
        kick = self.a.send(room.room_id, "m.room.member", ALICE, {"membership": "leave"}, US)
        await self.receive(kick)
        for wanted in (NO_FILTER, LAZY):
            left = (await self.sync(partial, wanted)).left[room.room_id]
            self.assertEqual(left.timeline.events[-1].event_id, kick.event_id)
