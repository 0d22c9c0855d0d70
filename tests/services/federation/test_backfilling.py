"""A client pages back beyond what is here: the history comes from other servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.pure_server import PureServer
from synrepl.adapters.http.messages import HttpAnswer
from synrepl.daemon.client_api.endpoints import ClientRequest
from synrepl.daemon.client_api.reading import MAX_BACKFILLS, RoomReading
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Event, topological_sort
from synrepl.rooms import auth_dependencies as cites
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.backfilling import (
    MAX_ASKED,
    MAX_STATES,
    Backfiller,
    RoomBackfill,
)
from synrepl.services.rooms.full_state_wait import FullStateWait
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.adapters.raw_http_client import reactor
from tests.services.federation.inbound_case import (
    ALICE,
    BOB,
    CAROL,
    HERE,
    OTHER,
    REMOTE,
    InboundCase,
    InboundProcess,
)
from tests.services.world import NullLog


class Backfilling(InboundCase):
    """A room that Alice joined late: this server has the state before the join, and nothing older."""

    def backfiller(
        self, process: InboundProcess, writers: Sequence[str] = ("one",), wait_s: float = 60.0
    ) -> Backfiller:
        """What fetches history, in a process."""
        inner = process.process.process
        backfill = RoomBackfill(
            inner.scheduler, inner.database, process.fetcher, process.process.persister, HERE
        )
        made = Backfiller(
            inner.scheduler,
            RoomWriters(inner.database, writers),
            backfill if inner.name in writers else None,
            process,
            inner.name,
            NullLog(),
            wait_s,
        )
        made.add_actions(process.actions)
        return made

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.remote.create_room("10", BOB, name="late")
        self.room = next(iter(self.remote.rooms.values()))
        self.events: list[Event] = []
        for number in range(30):
            self.events.append(self.say(self.room, f"{number}"))
            if number % 10 == 5:
                topic = {"topic": f"{number}"}
                self.events.append(
                    self.remote.send(self.room.room_id, "m.room.topic", BOB, topic, "")
                )
        content = {"membership": "join"}
        join = self.remote.send(self.room.room_id, "m.room.member", ALICE, content, ALICE)
        await self.join_late(self.room, join)
        self.join = join

    async def join_late(self, room: HostedRoom, join: Event) -> None:
        """Store a join with the state before it."""
        state = room.state_before(join.event_id)
        known = {each.event_id: each for each in [*room.auth_chain(state), *state]}
        ordered = topological_sort(list(known.values()), dependencies=cites).events
        incoming = [IncomingEvent(each, outlier=True) for each in ordered]
        entries = {(e.type, e.state_key or ""): e.event_id for e in state}
        incoming.append(IncomingEvent(join, live=False, state_before=entries))
        await self.one.persist(room.room_id, room.version, incoming)
        self.assertEqual(self.stored(join), "accepted")

    async def page(
        self, history: Backfiller | None, start: str | None = None, limit: int = 10
    ) -> tuple[list[str], str | None]:
        """The bodies of a page of messages, backwards, and where the next one begins."""
        query = {"dir": "b", "limit": str(limit), **({"from": start} if start else {})}
        identity = ClientIdentity(ALICE, "A")
        request = ClientRequest(identity, "", {"room": self.room.room_id}, query, b"")
        clock = self.one.process.scheduler
        reading = RoomReading(
            Timelines(self.database, clock, RoomTails(clock, self.database)),
            OnlyReader(),
            AllPositions(self.sql("SELECT max(stream_id) FROM synrepl.events")),
            AllPositions(0),
            FullStateWait(clock),
            HERE,
            history,
        )
        answer: HttpAnswer = await reading.messages(request)
        body = json.loads(answer.body)
        kinds = [e["content"].get("body", e["type"]) for e in body["chunk"]]
        return kinds, body.get("end")

    async def pages(self, history: Backfiller | None, limit: int = 10) -> list[str]:
        """The bodies of all pages up to the first that is empty."""
        found: list[str] = []
        start: str | None = None
        while True:
            chunk, start = await self.page(history, start, limit)
            found += chunk
            if start is None or not chunk:
                return found

    async def test_all_of_the_history_comes(self) -> None:
        found = await self.pages(self.backfiller(self.here))
        bodies = [each for each in found if each.isdigit()]
        self.assertEqual(bodies, [f"{number}" for number in reversed(range(30))])
        self.assertEqual(
            found[-4:],
            ["m.room.join_rules", "m.room.power_levels", "m.room.member", "m.room.create"],
        )
        self.assertEqual([self.stored(each) for each in self.events], ["accepted"] * 33)
        backfilled = self.sql("SELECT count(*) FROM synrepl.backfill")
        self.assertEqual(backfilled, 37)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._backward_extremities"), 0)
        self.assert_same_state(self.room)

    async def test_pages_that_are_cut_off_go_on_where_they_were(self) -> None:
        from synrepl.services.federation import backfilling

        self.patch(backfilling, "EVENTS_AT_ONCE", 7)
        found = await self.pages(self.backfiller(self.here), limit=4)
        self.assertEqual(len([each for each in found if each.isdigit()]), 30)
        self.assertGreater(len(self.federation.asked("state_ids")), 2)
        for event in self.events:
            theirs = self.room.room.state_before(event.event_id).as_dict()
            ours = self.sql(
                "SELECT size FROM synrepl._state_groups g JOIN synrepl._room_events e"
                " ON e.group_before = g.group_no WHERE e.event_id = %s",
                event.event_id,
            )
            self.assertEqual(ours, len(theirs))

    async def test_there_is_more_when_nobody_answers(self) -> None:
        history = self.backfiller(self.here)
        self.federation.stop(REMOTE)
        chunk, end = await self.page(history)
        self.assertEqual(chunk, ["m.room.member"])
        self.assertIsNotNone(end)
        self.assertEqual(await self.page(history, end), ([], end))
        asked = len(self.federation.requests)
        self.federation.start(REMOTE)
        self.assertEqual(await self.page(history, end), ([], end))
        self.assertEqual(len(self.federation.requests), asked, "it is not asked again at once")
        self.sql("UPDATE synrepl._failed_fetches SET next_try = now()")
        chunk, _ = await self.page(history, end)
        self.assertEqual(chunk[0], "29")

    async def test_without_other_servers_the_history_ends_where_it_does(self) -> None:
        chunk, end = await self.page(None)
        self.assertEqual(chunk, ["m.room.member"])
        self.assertIsNone(end)

    async def test_a_client_waits_for_a_bounded_time(self) -> None:
        self.remote.faults = [ServerFault("backfill", FaultKind.NO_ANSWER)]
        chunk, end = await self.page(self.backfiller(self.here, wait_s=0.05))
        self.assertEqual(chunk, ["m.room.member"])
        self.assertIsNotNone(end)
        for call in reactor.getDelayedCalls():  # the request that is never answered
            if "expire" in str(call.func):
                call.cancel()

    async def test_another_process_has_the_room_backfilled(self) -> None:
        two = self.inbound(await self.start_process("two"), persists=False)
        two.others["one"] = self.here
        self.backfiller(self.here)
        chunk, _ = await self.page(self.backfiller(two))
        self.assertEqual(chunk[:2], ["m.room.member", "29"])
        self.assertEqual(two.forwarded, [("one", "backfill room")])

    async def test_the_next_server_is_asked_when_one_lies(self) -> None:
        other = PureServer(OTHER, self.federation)
        await other.join(self.room.room_id, CAROL, REMOTE)
        join = self.room.current(("m.room.member", CAROL))
        assert join is not None
        await self.here.receive([join])
        other.rooms[self.room.room_id] = self.room  # it was there from the beginning
        for kind in (FaultKind.UNSIGNED, FaultKind.GARBAGE, FaultKind.EMPTY, FaultKind.FORBIDDEN):
            for liar in (self.remote, other):
                liar.faults = [ServerFault("backfill", kind)]
                chunk, _ = await self.page(self.backfiller(self.here), limit=3)
                self.assertEqual(chunk[:3], ["m.room.member", "m.room.member", "29"], kind)
                liar.faults = []
                self.sql("DELETE FROM synrepl._failed_fetches")

    async def test_islands_are_joined_and_what_is_here_is_not_fetched_again(self) -> None:
        leave = self.remote.send(
            self.room.room_id, "m.room.member", ALICE, {"membership": "leave"}, ALICE
        )
        await self.here.receive([leave])
        between = [self.say(self.room, f"{number}") for number in range(30, 45)]
        content = {"membership": "join"}
        back = self.remote.send(self.room.room_id, "m.room.member", ALICE, content, ALICE)
        await self.join_late(self.room, back)
        history = self.backfiller(self.here)
        chunk, end = await self.page(history, limit=17)
        bodies = [f"{number}" for number in reversed(range(30, 45))]
        self.assertEqual(chunk, ["m.room.member", *bodies, "m.room.member"])
        self.assertEqual([self.stored(each) for each in between], ["accepted"] * 15)
        self.assertEqual(len(self.federation.asked("backfill")), 1)
        self.assertEqual(self.federation.asked("state"), [], "the leave is here")
        chunk, _ = await self.page(history, end, limit=40)
        self.assertEqual(
            [each for each in chunk if each.isdigit()],
            [f"{number}" for number in reversed(range(30))],
        )
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._backward_extremities"), 0)
        self.assert_same_state(self.room)

    async def test_a_bounded_number_of_servers_is_asked(self) -> None:
        liars = [self.remote]
        for number in range(MAX_ASKED + 3):
            liars.append(PureServer(f"s{number}.test", self.federation))
            user = f"@dave:s{number}.test"
            await liars[-1].join(self.room.room_id, user, REMOTE)
            join = self.room.current(("m.room.member", user))
            assert join is not None
            await self.here.receive([join])
        for each in liars:
            each.faults = [ServerFault("backfill", FaultKind.FORBIDDEN)]
        history = self.backfiller(self.here)
        chunk, end = await self.page(history, limit=50)
        self.assertEqual(chunk, ["m.room.member"] * (MAX_ASKED + 4))
        asked = self.federation.asked("backfill")
        self.assertEqual(len(asked), MAX_ASKED)
        self.assertEqual(await self.page(history, end), ([], end))
        self.assertEqual(len(self.federation.asked("backfill")), MAX_ASKED, "nor again at once")

    async def test_states_of_a_bounded_number_of_events_are_asked_for(self) -> None:
        self.remote.faults = [ServerFault("backfill", FaultKind.HALF_THE_EVENTS)]
        await self.page(self.backfiller(self.here), limit=50)
        self.assertEqual(len(self.federation.asked("backfill")), MAX_BACKFILLS)
        asked = len(self.federation.asked("state_ids"))
        self.assertEqual(asked, MAX_BACKFILLS * MAX_STATES)


class OnlyReader:
    """Knows no ignored users."""

    async def reader_of(self, identity: ClientIdentity) -> TimelineReader:
        return TimelineReader(identity.user_id, identity.device_id)


class AllPositions:
    """The positions of a process that has applied everything."""

    def __init__(self, newest: Any) -> None:
        self._newest = int(newest)

    def current(self) -> SyncToken:
        return SyncToken("x", events=PositionVector(linear=self._newest))

    async def until_covered(self, token: SyncToken) -> None:
        return None
