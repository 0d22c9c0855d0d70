"""Servers that lie, fail, or do not know of the join: another one is asked, and nothing of a bad answer stays."""

from __future__ import annotations

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from tests.services.federation.resync.resync_case import ALICE, ResyncCase

#: Faults of a list of IDs, with what they are recorded as.
OF_IDS = {
    FaultKind.NO_ANSWER: "away",
    FaultKind.FORBIDDEN: "refused-403",
    FaultKind.NOT_FOUND: "refused-404",
    FaultKind.BROKEN: "refused-500",
    FaultKind.TOO_LARGE: "too-large",
    FaultKind.TRUNCATED: "bad-answer",
    FaultKind.GARBAGE: "bad-answer",
    FaultKind.NO_OBJECT: "bad-answer",
    FaultKind.NESTED: "bad-answer",
    FaultKind.EMPTY: "bad-answer",
    FaultKind.OTHER_ROOM: "bad-answer",
    FaultKind.NO_CREATE: "bad-answer",
    FaultKind.NO_MEMBERS: "bad-answer",
    FaultKind.UNKNOWN_EVENTS: "incomplete",
    FaultKind.CONTRADICTORY: "bad-answer",
}

#: Faults of the events themselves, one by one and all at once.
OF_EVENTS = {
    FaultKind.NO_ANSWER: "away",
    FaultKind.NOT_FOUND: "incomplete",
    FaultKind.BROKEN: "incomplete",
    FaultKind.GARBAGE: "bad-answer",
    FaultKind.UNSIGNED: "incomplete",
    FaultKind.WRONGLY_SIGNED: "incomplete",
}

#: Faults of a whole state, after which single events are asked for.
OF_STATES = (
    FaultKind.NOT_FOUND,
    FaultKind.TRUNCATED,
    FaultKind.GARBAGE,
    FaultKind.NESTED,
    FaultKind.EMPTY,
    FaultKind.OTHER_ROOM,
    FaultKind.HALF_THE_EVENTS,
    FaultKind.UNSIGNED,
    FaultKind.WRONGLY_SIGNED,
    FaultKind.NO_AUTH_CHAIN,
)


class LyingServers(ResyncCase):
    timeout = 120

    async def prepared(self, version: str = "10", members: int = 8) -> HostedRoom:
        room = await self.shared_room(version, members)
        for membership in ("join", "leave"):  # a key with two events
            self.a.send(room.room_id, "m.room.member", "@z:c", {"membership": membership}, "@z:c")
        if len(self.a.rooms) == 1:
            self.a.create_room(version, ALICE, name="other")
        await self.a.outgoing.send_all()
        await self.join(room)
        return room

    async def forget_all(self) -> None:
        await self.empty()
        for server in (self.a, self.b):
            server.rooms.clear()
            server.faults.clear()

    async def fails(self, *faults: ServerFault) -> str:
        """With one server that has faults, the room stays partial; the outcome of asking it.

        Events that may be real are kept as outliers, and nothing else of a bad list.
        """
        stored = await self.stored_ids()
        room_id = self.sql(
            "SELECT room_id FROM synrepl._rooms JOIN synrepl._partial_rooms USING (room_no)"
        )
        real = self.a.rooms[room_id]
        self.federation.stop("b")
        self.a.faults += faults
        await self.here.complete()
        self.assertEqual(sorted(await self.stored_ids()), sorted(stored))
        unreal = [each for each in await self.stored_ids("true") if each not in real]
        self.assertEqual(sorted(unreal), sorted(each for each in stored if each not in real))
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._partial_rooms"), 1)
        self.assertNotEqual(self.sql("SELECT reason FROM synrepl._resync_jobs"), None)
        self.federation.start("b")
        return self.attempts()["a"]

    async def test_a_bad_list_is_recorded_and_another_server_is_asked(self) -> None:
        for kind, code in OF_IDS.items():
            room = await self.prepared()
            self.assertEqual(await self.fails(ServerFault("state_ids", kind)), code, kind)
            self.try_again()
            await self.here.complete()
            await self.check_complete(room)
            self.assertEqual(self.attempts()["b"], "ok")
            await self.forget_all()

    async def test_bad_events_are_recorded_and_another_server_is_asked(self) -> None:
        for kind, code in OF_EVENTS.items():
            room = await self.prepared()
            found = await self.fails(ServerFault("event", kind), ServerFault("state", kind))
            self.assertEqual(found, code, kind)
            self.try_again()
            await self.here.complete()
            await self.check_complete(room)
            await self.forget_all()

    async def test_a_bad_whole_state_leads_to_single_events(self) -> None:
        for kind in OF_STATES:
            room = await self.prepared(members=40)
            self.federation.stop("b")
            self.a.faults.append(ServerFault("state", kind))
            await self.here.complete()
            self.try_again()  # the server may have to be left alone for a while
            await self.here.complete()
            self.federation.start("b")
            await self.check_complete(room)
            self.assertGreater(len(self.federation.asked("event/", "a")), 0, kind)
            self.federation.requests.clear()
            await self.forget_all()

    async def test_events_in_a_cycle_are_never_stored(self) -> None:
        room = await self.prepared("1")
        faults = [ServerFault(each, FaultKind.CYCLE) for each in ("state_ids", "state")]
        self.assertIn(await self.fails(*faults), ("bad-answer", "incomplete"))
        self.try_again()
        await self.here.complete()
        await self.check_complete(room)

    async def test_events_whose_hash_is_wrong_are_stored_in_their_redacted_form(self) -> None:
        room = await self.prepared()
        self.a.faults += [ServerFault(each, FaultKind.WRONG_HASH) for each in ("state", "event")]
        await self.here.complete()
        await self.check_nothing_is_wrong()
        self.assertEqual(self.sql("SELECT phase FROM synrepl._resync_jobs"), "done")
        self.assertEqual(
            self.sql("SELECT count(*) FROM synrepl._current_state"),
            len(room.room.current_state()),
        )

    async def test_a_server_that_has_not_heard_of_the_join_is_told(self) -> None:
        room = await self.shared_room()
        await self.here.join(room.room_id, "a")
        self.federation.stop("a")  # before it could tell anybody
        self.a.outgoing.queues.clear()
        await self.here.complete()
        await self.check_complete(room)
        attempts = self.attempts()
        self.assertEqual((attempts["a"], attempts["b"]), ("away", "ok"))
        self.assertEqual(len(self.federation.asked("send/", "b")), 1)

    async def test_nobody_helps_for_long_and_then_somebody_does(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        for name in "ab":
            self.federation.stop(name)
        waits = []
        for _ in range(4):
            self.try_again()
            await self.here.complete()
            waits.append(
                self.sql(
                    "SELECT extract(epoch FROM next_try - now())::float FROM synrepl._resync_jobs"
                )
            )
        self.assertEqual(waits, sorted(waits))
        self.assertGreater(waits[-1], 2 * waits[0])
        self.assertEqual(self.sql("SELECT failures FROM synrepl._resync_jobs"), 4)
        self.federation.start("b")
        self.here.worker.server_is_up("b")
        await self.until(lambda: self.sql("SELECT phase = 'done' FROM synrepl._resync_jobs"))
        await self.check_complete(room)

    async def test_a_broken_answer_is_not_begun_anew(self) -> None:
        room = await self.prepared(members=60)
        self.federation.stop("b")
        self.a.faults += [
            ServerFault("state", FaultKind.HALF_THE_EVENTS),
            ServerFault("event", FaultKind.NO_ANSWER),
        ]
        await self.here.complete()
        self.assertGreater(self.sql("SELECT stored FROM synrepl._resync_jobs"), 20)
        self.a.faults.clear()
        self.federation.requests.clear()
        self.try_again()
        await self.here.complete()
        await self.check_complete(room)
        self.assertEqual(self.federation.asked("state_ids"), [])

    async def test_a_state_that_does_not_allow_the_join_is_believed_of_two_servers_only(
        self,
    ) -> None:
        room = await self.shared_room()
        await self.join(room)
        for server in (self.a, self.b):
            server.faults += [
                ServerFault(each, FaultKind.NO_JOIN_RULES) for each in ("state_ids", "state")
            ]
        self.federation.stop("b")
        await self.here.complete()
        self.assertEqual(self.attempts()["a"], "refuses-join")
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._partial_rooms"), 1)
        self.federation.start("b")
        self.try_again()
        await self.here.complete()
        self.assertEqual(self.sql("SELECT phase FROM synrepl._resync_jobs"), "done")
        self.assertEqual(
            self.sql("SELECT count(*) FROM synrepl._memberships WHERE user_id = '@us:here'"), 0
        )
