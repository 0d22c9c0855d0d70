"""Presence, decided by one process for each user, and stored."""

from __future__ import annotations

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.rooms.client_data.presence import (
    LOOK_EVERY_S,
    PresenceNotVisible,
    PresenceService,
    ReportedActivity,
    ReportedSync,
)
from synrepl.services.rooms.client_data.presence_states import (
    OFFLINE,
    ONLINE,
    UNAVAILABLE,
)
from synrepl.storage.clients.values import Presence
from tests.services.rooms.client_data.data_case import ClientDataCase
from tests.services.rooms.sending_case import ALICE, BOB, CAROL
from tests.services.world import NullLog, manual_clock

USERS = [f"@u{number}:test" for number in range(6)]


class PresenceServices(ClientDataCase):
    """Services of three processes, two of which decide."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.clock = manual_clock()
        self.clock.advance(1_000_000)
        self.plain = self.connect()
        self.services = {name: self.service(name) for name in self.names}

    def service(self, name: str) -> PresenceService:
        """The service of a process that has just started."""
        scheduler = TwistedScheduler(self.clock)
        self.addCleanup(scheduler.stop)
        process = self.data[name]
        return PresenceService(scheduler, process.database, process.writers, NullLog())

    async def until_states(self, **expected: str) -> None:
        """Let time pass until users are in these states."""
        while self.states() != expected:
            await self.tick()
            self.clock.advance(LOOK_EVERY_S)

    def states(self) -> dict[str, str]:
        """The states that are stored, by the local part of users' IDs."""
        found = self.sql(
            "SELECT json_object_agg(substr(user_id, 2, strpos(user_id, ':') - 2), state)"
            " FROM synrepl._presence",
            on=self.plain,
        )
        return dict(found or {})

    async def test_any_process_takes_what_one_decides(self) -> None:
        service = self.services["d3"]
        deciding = {service.decided_by(user) for user in USERS}
        self.assertEqual(deciding, {"d1", "d2"})
        for user in USERS:
            fact = await service.set(user, ONLINE, "hello")
            assert fact is not None
            self.assertEqual(fact.writer, service.decided_by(user))
            self.assertEqual(await self.services["d1"].set(user, ONLINE, "hello"), fact)
        found = await self.services["d2"].get(USERS[0], USERS[0])
        self.assertEqual(found[:3], (USERS[0], ONLINE, "hello"))

    async def test_only_those_who_share_a_room_see_it(self) -> None:
        service = self.services["d1"]
        await service.set(ALICE.user_id, UNAVAILABLE, None)
        self.assertEqual((await service.get(ALICE.user_id, BOB.user_id)).state, UNAVAILABLE)
        self.assertEqual((await service.get(BOB.user_id, ALICE.user_id)).state, OFFLINE)
        with self.assertRaises(PresenceNotVisible):
            await service.get(ALICE.user_id, CAROL.user_id)

    async def test_reports_make_users_online_and_time_ends_it(self) -> None:
        name = self.services["d3"].decided_by("@a:test")
        service = self.services[name]
        service_runs = TwistedScheduler(self.clock)
        self.addCleanup(service_runs.stop)
        service_runs.spawn("presence", service.run())
        reporting = self.services["d3"]
        await reporting.report(name, [ReportedSync("@a:test", ONLINE, 0.0)], [], [])
        self.assertEqual(self.states(), {"a": ONLINE})
        await self.until_states(a=OFFLINE)
        acted = ReportedActivity("@a:test", 0.0)
        await reporting.report(name, [ReportedSync("@a:test", UNAVAILABLE, 0.0)], [], [acted])
        self.assertEqual(self.states(), {"a": UNAVAILABLE})

    async def test_what_was_done_before_a_state_was_set_does_not_end_it(self) -> None:
        service = self.services["d3"]
        name = service.decided_by("@a:test")
        await service.report(name, [ReportedSync("@a:test", ONLINE, 0.0)], [], [])
        for state in (UNAVAILABLE, OFFLINE):
            self.assertIsNotNone(await service.set("@a:test", state, None))
            self.clock.advance(2)
            acted = ReportedActivity("@a:test", 3.0)
            await service.report(name, [ReportedSync("@a:test", ONLINE, 3.0)], [], [acted])
            self.assertEqual((await service.get("@a:test", "@a:test")).state, state)

    async def test_an_offline_user_of_whom_nothing_was_told_has_nothing_to_wait_for(self) -> None:
        self.assertIsNone(await self.services["d3"].set("@a:test", OFFLINE, None))

    async def test_a_process_that_starts_again_goes_on_with_what_is_stored(self) -> None:
        name = self.services["d3"].decided_by("@a:test")
        await self.services["d3"].report(name, [ReportedSync("@a:test", ONLINE, 0.0)], [], [])
        other = "d1" if name == "d2" else "d2"
        elsewhere = next(u for u in USERS if self.services["d3"].decided_by(u) == other)
        await self.services["d3"].report(other, [ReportedSync(elsewhere, ONLINE, 0.0)], [], [])
        again = self.service(name)
        scheduler = TwistedScheduler(self.clock)
        self.addCleanup(scheduler.stop)
        scheduler.spawn("presence", again.run())
        local = elsewhere[1:].partition(":")[0]
        await self.until_states(a=OFFLINE, **{local: ONLINE})

    async def test_presence_of_other_servers_is_stored_as_it_comes(self) -> None:
        await self.services["d3"].store_foreign([Presence("@far:away", ONLINE, "hi", 5_000, True)])
        self.assertEqual(self.states(), {"far": ONLINE})
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.presence"), 1)
