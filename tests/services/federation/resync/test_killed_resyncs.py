"""Partial joins and resyncs, killed at each statement and each COMMIT: they go on, and nothing is seen of them before."""

from __future__ import annotations

import os
from typing import Any

from simulator.rooms.comparison import Kept, compare_room
from simulator.rooms.server import ImmediateDatabase, result_of
from synrepl.driver.blocking import BlockingDatabase
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.rooms.maintenance.findings import RoomProblem
from synrepl.storage.rooms.partial.join_run import PartialJoinAnswer
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.tables import ensure_tables
from synrepl.streams.synapse.un_partial_stated_room import UnPartialStatedRoomRow
from tests.services.federation.resync.blocking_server import (
    BlockingRoomServer,
    KilledHere,
    Kills,
    KnowingClient,
    NoKills,
)
from tests.services.federation.resync.random_joined_room import RandomJoinedRoom
from tests.storage.postgres import PostgresCase
from tests.storage.rooms.blocking_store import EMPTY

#: Seeds and versions of rooms: two in every run, and more where more examples are asked for.
ROOMS = [(3, "10"), (4, "12")]
if "SYNREPL_ROOM_EXAMPLES" in os.environ:
    ROOMS += [(seed, ("6", "11", "12")[seed % 3]) for seed in range(100, 110)]

#: What others see of a room.
SEEN = (
    "SELECT array_agg(e ORDER BY event_no)::text FROM synrepl._room_events e WHERE stream_id IS NOT NULL",
    "SELECT array_agg(c ORDER BY slot)::text FROM synrepl._current_state c",
    "SELECT array_agg(m ORDER BY user_id)::text FROM synrepl._memberships m",
    "SELECT array_agg(x ORDER BY event_no)::text FROM synrepl._forward_extremities x",
    "SELECT array_agg(p ORDER BY event_no)::text FROM synrepl._partial_events p",
    "SELECT array_agg(p)::text FROM synrepl._partial_rooms p",
)


class KilledResyncs(PostgresCase):
    timeout = 1_800

    def server(self, name: str, facts: dict[str, list[Any]]) -> BlockingRoomServer:
        server = BlockingRoomServer(self.dsn, name, facts)
        self.addCleanup(server.database.close)
        return server

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.operator = BlockingDatabase(self.dsn, "operator")
        self.addCleanup(self.operator.close)
        self.operator.run("tables", lambda txn: ensure_tables(txn, RESYNC_STREAMS))
        self.connection = self.connect()
        self.facts: dict[str, list[Any]] = {}
        self.servers = [self.server(name, self.facts) for name in ("one", "two")]

    def seen(self) -> list[Any]:
        return [self.sql(each, on=self.connection) for each in SEEN]

    def test_a_partial_join_goes_in_once_wherever_it_is_killed(self) -> None:
        for seed, version in ROOMS:
            room = RandomJoinedRoom(seed, version)
            kills = Kills()
            server = self.servers[0]
            server.kills = kills
            nothing = self.seen()
            before = sum(map(len, self.facts.values()))
            while True:
                try:
                    result_of(server.join(PartialJoinAnswer(room.join, "a")))
                    break
                except KilledHere as killed:
                    server.restart()
                    if killed.args[0][-1] == "after COMMIT":
                        nothing, before = self.seen(), sum(map(len, self.facts.values()))
                    self.assertEqual(self.seen(), nothing)
                    self.assertEqual(sum(map(len, self.facts.values())), before)
            self.assertGreater(len(kills.places), 8)
            self.assertEqual(
                self.sql("SELECT count(*) FROM synrepl._partial_rooms", on=self.connection), 1
            )
            told = [
                each
                for each in self.facts["events"]
                if getattr(each, "event_id", "") == room.join.join.event_id
            ]
            self.assertGreaterEqual(len(told), 1)
            self.assertEqual(len({type(each) for each in told}), len(told))
            server.kills = NoKills()
            self.empty()

    def test_a_resync_goes_on_wherever_it_is_killed(self) -> None:
        for seed, version in ROOMS:
            room = RandomJoinedRoom(seed, version)
            one, two = self.servers
            result_of(one.join(PartialJoinAnswer(room.join, "a")))
            room.more(25)
            while len(room.unsent) > 8:
                self.come(one, room)
            kills = Kills()
            count = 0
            before = self.seen()
            while True:
                # The two take turns; each finds the job as the other one left it.
                server = self.servers[count % 2]
                server.kills = kills
                try:
                    is_done = not server.complete(KnowingClient(room))
                    server.kills = NoKills()
                    if is_done:
                        break
                except KilledHere:
                    count += 1
                    server.kills = NoKills()
                    server.restart()
                    self.release()
                    if self.sql("SELECT count(*) FROM synrepl._partial_rooms", on=self.connection):
                        self.assertEqual(self.seen(), before)
                        if count % 7 == 0 and room.unsent:
                            self.come(two, room)
                            before = self.seen()
            self.assertGreater(count, 60)
            self.assertEqual(
                self.sql("SELECT phase FROM synrepl._resync_jobs", on=self.connection), "done"
            )
            self.assertEqual(
                self.facts["un_partial_stated_room"],
                [UnPartialStatedRoomRow(room.join.join.room_id)],
            )
            while room.unsent:
                self.come(one, room)
            self.check(room)
            self.facts.clear()
            self.empty()

    def come(self, server: BlockingRoomServer, room: RandomJoinedRoom) -> None:
        result_of(server.persist(room.join.join.room_id, room.version.name, room.some(3)))

    def release(self) -> None:
        """Time passes, and the claims of processes that were killed end."""
        self.sql(
            "UPDATE synrepl._resync_jobs SET leased_until = NULL, next_try = now()",
            on=self.connection,
        )

    def check(self, room: RandomJoinedRoom) -> None:
        outliers = self.sql(
            "SELECT array_agg(event_id) FROM synrepl._room_events WHERE stream_id IS NULL",
            on=self.connection,
        )
        expected = room.stored(outliers or ())
        kept = Kept(unordered={each.event.event_id for each in expected})
        self.operator.run("compare", lambda txn: compare_room(txn, expected, None, False, kept))

        async def findings() -> list[str]:
            verification = RoomVerification(ImmediateDatabase(self.operator))
            return [
                str(each)
                for room_id in await verification.room_ids()
                async for each in verification.findings(room_id)
                if each.problem is not RoomProblem.WRONG_CONTENT
            ]

        self.assertEqual(result_of(findings()), [])

    def empty(self) -> None:
        self.sql(EMPTY, on=self.connection)
        for server in self.servers:
            server.restart()
