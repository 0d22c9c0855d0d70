"""The health of named followers, as their master sees it."""

from __future__ import annotations

from unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.services.status.expected_followers import (
    CHECK_S,
    ExpectedFollowers,
    FollowerHealth,
    FollowerLimits,
    FollowerReport,
)
from tests.services.world import RecordingLog, done, started

LIMITS = FollowerLimits(["listed"], silent_s=30.0, stuck_s=60.0)


class ExpectedFollowersCase(TestCase):
    """One master, whose streams and followers are moved by hand."""

    limits = FollowerLimits(silent_s=30.0, stuck_s=60.0)

    def setUp(self) -> None:
        self.world = started()
        self.addCleanup(self.world.stop)
        self.addCleanup(self.world.scheduler.stop)
        self.log = RecordingLog()
        self.connected: set[str] = set()
        self.expected = ExpectedFollowers(
            self.world.scheduler,
            self.world.store,
            self.world.announcer.states,
            lambda: self.connected,
            self.limits,
            self.log,
        )
        self.world.scheduler.spawn("watch", self.expected.run())

    def append(self, count: int = 1) -> None:
        done(self.world.intake.append("jobs", b"[" + b",".join([b"[1]"] * count) + b"]"))

    def wait(self, seconds: float, *running: str) -> None:
        """Let time pass, in which the processes of some followers give signs of life."""
        for _ in range(int(seconds / CHECK_S)):
            for name in running:
                done(self.world.store.renew_lease(name, ["jobs"], 3_600.0))
            self.world.clock.advance(CHECK_S)

    def acknowledge(self, follower: str, token: Token) -> None:
        done(self.world.store.record_follower(follower, {("jobs", "master"): token}))

    def report(self, name: str) -> FollowerReport:
        (found,) = (report for report in self.expected.reports() if report.name == name)
        return found

    def health(self, name: str) -> str:
        return self.report(name).health.value


class FollowersWithLeases(ExpectedFollowersCase):
    """Followers that hold a lease."""

    def test_a_follower_that_runs_and_has_everything_is_ok(self) -> None:
        self.append(3)
        self.acknowledge("w1", 3)
        self.wait(300, "w1")
        self.assertEqual(self.health("w1"), "ok")
        self.assertIsNone(self.expected.trouble())

    def test_a_follower_without_a_heartbeat_is_missing(self) -> None:
        self.append()
        self.acknowledge("w1", 1)
        self.wait(60, "w1")
        self.wait(20)
        self.assertEqual(self.health("w1"), "ok")
        self.wait(15)
        self.assertEqual(self.health("w1"), "missing")
        self.assertEqual(self.expected.trouble(), "follower w1 is missing: no sign of it for 40 s")
        self.wait(5, "w1")
        self.assertEqual(self.health("w1"), "ok")
        message = [line for _, line in self.log.lines]
        self.assertEqual(len(message), 2)  # once each
        self.assertIn("follower w1 is missing", message[0])
        self.assertEqual(message[1], "follower w1 is back")

    def test_no_follower_is_missing_before_the_master_has_run_long_enough(self) -> None:
        self.world.clock.advance(CHECK_S)
        done(self.world.store.renew_lease("w1", None, 3_600.0))
        self.world.store.set_heartbeat("w1", -500.0)
        self.wait(20)
        self.assertEqual(self.health("w1"), "ok")
        self.wait(20)
        self.assertEqual(self.health("w1"), "missing")

    def test_no_follower_is_missing_because_the_database_is_away(self) -> None:
        self.append()
        self.acknowledge("w1", 1)
        self.wait(60, "w1")
        self.world.store.away = True
        self.wait(300)
        self.world.store.away = False
        self.assertEqual(self.health("w1"), "ok")

    def test_a_follower_without_progress_is_stuck_while_its_stream_advances(self) -> None:
        self.append(3)
        self.acknowledge("w1", 1)
        self.wait(60, "w1")
        self.assertEqual(self.health("w1"), "ok")
        self.append()
        self.wait(10, "w1")
        report = self.report("w1")
        self.assertEqual(report.health, FollowerHealth.STUCK)
        self.assertIn(
            "follower w1 is stuck: it is at 1 in jobs of master, which is at 4, for 65 s",
            str(report.trouble),
        )
        self.acknowledge("w1", 4)
        self.wait(5, "w1")
        self.assertEqual(self.health("w1"), "ok")

    def test_a_follower_that_makes_progress_is_only_behind(self) -> None:
        self.append(100)
        for token in range(1, 20):
            self.acknowledge("w1", token)
            self.wait(5, "w1")
        self.assertEqual(self.health("w1"), "behind")
        self.assertIsNone(self.expected.trouble())

    def test_a_follower_without_positions_is_behind_by_everything(self) -> None:
        self.append(3)
        self.wait(70, "w1")
        report = self.report("w1")
        self.assertEqual((report.health, report.lags["jobs"].tokens), (FollowerHealth.STUCK, 3))
        self.assertIn("it has no position in jobs, which is at 3", str(report.trouble))

    def test_no_follower_is_stuck_on_an_idle_stream(self) -> None:
        self.append(3)
        self.acknowledge("w1", 3)
        self.wait(600, "w1")
        self.append()
        self.assertEqual(self.health("w1"), "ok")

    def test_a_lake_need_not_run_all_the_time(self) -> None:
        self.append(3)
        done(self.world.store.renew_lease("lake", None, 3_600.0))
        self.world.store.set_heartbeat("lake", None)
        self.wait(300)
        report = self.report("lake")
        self.assertEqual((report.health, report.lags["jobs"].tokens), (FollowerHealth.UNWATCHED, 3))
        self.assertIsNone(self.expected.trouble())

    def test_summarizes_many_followers(self) -> None:
        names = [f"w{n}" for n in range(8)]
        self.wait(60, *names)
        self.wait(40)
        message = str(self.expected.trouble())
        self.assertEqual(message.count("is missing"), 5)
        self.assertTrue(message.endswith("; and 3 more"))


class ConfiguredFollowers(ExpectedFollowersCase):
    """Followers that the configuration names."""

    limits = LIMITS

    def test_a_follower_that_never_ran_is_missing(self) -> None:
        self.wait(30)
        self.assertIsNone(self.expected.trouble())
        self.wait(10)
        self.assertIn("follower listed is missing", str(self.expected.trouble()))

    def test_a_connected_client_of_that_name_is_not_missing(self) -> None:
        self.connected.add("listed")
        self.wait(100)
        self.assertEqual((self.health("listed"), self.report("listed").connected), ("ok", True))
        self.connected.clear()
        self.wait(40)
        self.assertEqual(self.health("listed"), "missing")

    def test_a_configured_lake_has_to_run(self) -> None:
        done(self.world.store.renew_lease("listed", None, 3_600.0))
        self.world.store.set_heartbeat("listed", None)
        self.wait(40)
        self.assertEqual(self.health("listed"), "missing")
