"""How far the completion of rooms is, as one process sees it of all, and the alarm when it stands still."""

from __future__ import annotations

from synrepl.services.federation.resync.monitor import ResyncMonitor
from synrepl.storage.rooms.maintenance.findings import RoomProblem
from synrepl.storage.rooms.partial.jobs import wake_jobs
from synrepl.storage.rooms.reading.partial_states import STANDS_STILL_S
from tests.services.federation.resync.resync_case import BOB, ResyncCase
from tests.services.world import RecordingLog


class MonitoredRooms(ResyncCase):
    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.log = RecordingLog()
        self.monitor = ResyncMonitor(self.one.process.scheduler, self.database, self.log)

    def time_passes(self, seconds: float) -> None:
        self.sql(
            "UPDATE synrepl._resync_jobs SET progress_at = progress_at - make_interval(secs => %s)",
            seconds,
        )

    async def test_nothing_is_shown_where_all_rooms_are_complete(self) -> None:
        await self.monitor.look()
        status = self.monitor.status()
        self.assertEqual((status["rooms"], status["shown"], self.monitor.check()), (0, [], None))

    async def test_a_room_is_shown_with_what_each_server_answered(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        self.federation.stop("a")
        self.federation.stop("b")
        await self.here.complete()
        await self.monitor.look()
        status = self.monitor.status()
        (shown,) = status["shown"]
        self.assertEqual((status["rooms"], status["standing_still"]), (1, 0))
        self.assertEqual((shown["room_id"], shown["phase"]), (room.room_id, "ids"))
        asked = {each["destination"]: each["code"] for each in shown["servers_asked"]}
        self.assertEqual(asked, self.attempts())
        self.assertEqual(asked["b"], "away")
        self.assertEqual(sum(status["attempts"].values()), len(asked))
        self.assertTrue(all(each["reason"] for each in shown["servers_asked"]))

    async def test_servers_that_could_not_help_are_shown_before_those_that_could(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        self.federation.stop("b")
        await self.here.complete()
        numbers = "SELECT room_no FROM synrepl._rooms"
        self.sql(
            "INSERT INTO synrepl._resync_attempts (room_no, destination, code, reason)"
            f" VALUES (({numbers}), 'liar', 'bad-answer', 'it lies')"
        )
        for number in range(9):
            self.sql(
                "INSERT INTO synrepl._resync_attempts (room_no, destination, code, reason)"
                f" VALUES (({numbers}), %s, 'ok', '')",
                f"ok{number}",
            )
        self.sql("UPDATE synrepl._resync_jobs SET ended_at = NULL, phase = 'judge'")
        await self.monitor.look()
        (shown,) = self.monitor.status()["shown"]
        self.assertEqual(len(shown["servers_asked"]), 5)
        self.assertEqual(shown["servers_asked"][0]["reason"], "it lies")

    async def test_an_alarm_is_raised_once_and_ends_with_the_completion(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        self.time_passes(STANDS_STILL_S - 30)
        await self.monitor.look()
        self.assertIsNone(self.monitor.check())
        self.time_passes(60)
        for _ in range(3):
            await self.monitor.look()
        alarm = self.monitor.check()
        assert alarm is not None
        self.assertIn(f"1 of 1 partial rooms do not become complete, {room.room_id}", alarm)
        self.assertIn("asking which events its state has", alarm)
        self.assertEqual(len([line for _, line in self.log.lines if room.room_id in line]), 1)
        await self.here.complete()
        await self.monitor.look()
        self.assertIsNone(self.monitor.check())
        await self.check_complete(room)

    async def test_a_verification_finds_what_contradicts_the_room_s_being_partial(self) -> None:
        room = await self.shared_room()
        await self.join(room)
        await self.check_nothing_is_wrong()
        for damage in (
            "DELETE FROM synrepl._resync_jobs",
            "UPDATE synrepl._resync_jobs SET epoch = epoch + 1",
            "DELETE FROM synrepl._resync_events",
            "DELETE FROM synrepl._partial_events",
            "INSERT INTO synrepl._partial_events SELECT room_no, 999999 FROM synrepl._partial_rooms",
            "INSERT INTO synrepl._resync_events (event_no, room_no, is_reported, left_out)"
            " SELECT 999999, room_no, false, '{}' FROM synrepl._partial_rooms",
        ):
            found = await self.problems_after(damage)
            self.assertEqual(found, {RoomProblem.WRONG_PARTIAL}, damage)
        await self.check_nothing_is_wrong()

    async def problems_after(self, damage: str) -> set[RoomProblem]:
        """What a verification finds in a damaged room, which is repaired afterwards."""
        tables = ("_partial_events", "_resync_events", "_resync_jobs")
        for table in tables:
            self.sql(f"CREATE TABLE synrepl.copy{table} AS TABLE synrepl.{table}")
        self.sql(damage)
        verification = self.verification
        (room_id,) = await verification.room_ids()
        found = {each.problem async for each in verification.findings(room_id)}
        for table in tables:
            self.sql(f"DELETE FROM synrepl.{table}")
            self.sql(f"INSERT INTO synrepl.{table} TABLE synrepl.copy{table}")
            self.sql(f"DROP TABLE synrepl.copy{table}")
        return found

    async def test_only_the_room_that_is_named_is_woken(self) -> None:
        await self.join(await self.shared_room())
        await self.join(self.b.create_room("10", BOB), "b")
        self.sql("UPDATE synrepl._resync_jobs SET next_try = now() + interval '1 hour'")
        (first, second) = self.sql("SELECT array_agg(room_no ORDER BY room_no) FROM synrepl._rooms")
        woken = await self.read(lambda txn: wake_jobs(txn, room_no=second))
        waiting = "SELECT array_agg(room_no) FROM synrepl._resync_jobs WHERE next_try > now()"
        self.assertEqual((woken, self.sql(waiting)), (1, [first]))
