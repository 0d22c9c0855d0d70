"""The status of a process, its lag, and its readiness."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.protocol import Protocol

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.master import MasterFactory
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.status.readiness import Readiness, is_connected, lag_below
from synrepl.services.status.status import ProcessIdentity, worker_status
from synrepl.services.status.stream_progress import LagTracker, StreamProgress, worker_progress
from synrepl.storage.store import Draft, ReservationHolder
from synrepl.testing.links import Link
from synrepl.wire.commands import Position
from tests.services.world import FakeUpstream, MasterWorld, NullLog, done, manual_clock, started


class MeasuringLag(TestCase):
    """How far behind, and since when."""

    def setUp(self) -> None:
        self.clock = manual_clock()
        self.now = StreamProgress("s", 0, 0)
        self.watch = LagTracker(TwistedScheduler(self.clock), lambda: [self.now])

    def at(self, seconds: float, reached: int, known: int, *holders: str) -> tuple[int, float]:
        self.clock.advance(seconds)
        # As in a database, the text tells the age, so it is another one at each look.
        held = tuple(
            ("w", ReservationHolder((words,), f"{words} at {self.clock.seconds()}"))
            for words in holders
        )
        self.now = StreamProgress("s", reached, known, held)
        lag = self.watch.measure()["s"]
        return lag.rows, lag.seconds

    def test_has_no_lag_when_it_has_reached_everything(self) -> None:
        self.assertEqual(self.at(0, 5, 5), (0, 0.0))
        self.assertEqual(self.at(100, 5, 5), (0, 0.0))
        self.assertEqual(self.at(1, 5, 8), (3, 0.0))

    def test_counts_the_seconds_of_a_stuck_stream(self) -> None:
        self.at(0, 5, 8)
        self.assertEqual(self.at(10, 5, 9), (4, 10.0))
        self.assertEqual(self.at(10, 7, 9), (2, 20.0))

    def test_always_a_little_behind_is_not_stuck(self) -> None:
        self.at(0, 0, 3)
        for n in range(1, 50):
            rows, seconds = self.at(1, 3 * n, 3 * n + 3)
            self.assertEqual(rows, 3)
            self.assertLessEqual(seconds, 1.0)

    def test_counts_anew_when_it_falls_behind_again(self) -> None:
        self.at(0, 0, 3)
        self.assertEqual(self.at(10, 3, 3), (0, 0.0))
        self.assertEqual(self.at(50, 3, 4), (1, 0.0))
        self.assertEqual(self.at(5, 3, 4), (1, 5.0))

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
    @settings(max_examples=100)
    def test_seconds_never_exceed_the_time_since_it_had_no_lag(
        self, steps: list[tuple[int, int]]
    ) -> None:
        """Never more than since the stream was last level, and when it says so, it stood still."""
        self.setUp()
        reached = known = 0
        level_at, first_seen = 0.0, {0: 0.0}
        for given_out, settled in steps:
            known += given_out
            reached = min(known, reached + settled)
            rows, seconds = self.at(1, reached, known)
            now = self.clock.seconds()
            for token in range(reached + 1, known + 1):
                first_seen.setdefault(token, now)
            if reached == known:
                level_at = now
            self.assertEqual(rows, known - reached)
            self.assertLessEqual(seconds, now - level_at)
            if rows:
                oldest_unreached = now - first_seen[reached + 1]
                self.assertLessEqual(seconds, oldest_unreached)

    def test_shows_the_oldest_reservation(self) -> None:
        self.at(0, 0, 3, "a")
        self.at(2, 0, 3, "b", "a")
        oldest = self.watch.measure()["s"].oldest
        assert oldest is not None
        self.assertEqual((oldest.writer, oldest.describe, oldest.seconds), ("w", "a at 2.0", 2.0))
        self.at(3, 0, 3, "b")
        oldest = self.watch.measure()["s"].oldest
        assert oldest is not None
        self.assertEqual((oldest.describe, oldest.seconds), ("b at 5.0", 3.0))
        self.at(1, 0, 3)
        self.assertIsNone(self.watch.measure()["s"].oldest)

    def test_one_transaction_may_hold_reservations_of_two_writers(self) -> None:
        both = [
            ("a", ReservationHolder((7, "3/12"), "as a")),
            ("b", ReservationHolder((7, "3/12"), "as b")),
        ]
        self.now = StreamProgress("s", 0, 3, (both[1],))
        self.watch.measure()
        self.clock.advance(4)
        self.now = StreamProgress("s", 0, 3, tuple(both))
        oldest = self.watch.measure()["s"].oldest
        assert oldest is not None
        self.assertEqual((oldest.writer, oldest.seconds), ("b", 4.0))

    def test_a_reservation_from_before_the_first_measurement_is_as_old_as_its_transaction(
        self,
    ) -> None:
        self.now = StreamProgress("s", 0, 3, (("w", ReservationHolder((1,), "first", 79.0)),))
        oldest = self.watch.measure()["s"].oldest
        assert oldest is not None
        self.assertEqual(oldest.seconds, 79.0)
        # A later one has been reserved since the last look, whenever its transaction began.
        self.now = StreamProgress("s", 0, 3, (("w", ReservationHolder((2,), "later", 500.0)),))
        oldest = self.watch.measure()["s"].oldest
        assert oldest is not None
        self.assertEqual(oldest.seconds, 0.0)

    def test_measures_once_a_second_until_it_is_stopped(self) -> None:
        self.now = StreamProgress("s", 0, 3)
        self.watch.start()
        self.clock.pump([1, 1, 1])
        self.assertEqual(self.watch.measure()["s"].seconds, 3.0)
        self.watch.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_measures_a_worker_at_the_writer_that_is_furthest_behind(self) -> None:
        heard = {("s", "a"): 10, ("s", "b"): 12, ("t", ""): 4}
        progress = worker_progress({("s", "a"): 7, ("s", "b"): 12, ("t", ""): 4}, heard)
        self.assertEqual(progress, [StreamProgress("s", 7, 12), StreamProgress("t", 4, 4)])
        self.assertEqual(worker_progress({}, {("s", "a"): 3}), [StreamProgress("s", 0, 3)])
        own = {("s", "a"): 7, ("s", "b"): 9}
        self.assertEqual(worker_progress(own, heard)[0], StreamProgress("s", 7, 12))


class MasterStatus(TestCase):
    """A master, with a follower."""

    def test_shows_each_streams_position_and_lag(self) -> None:
        world = started()
        done(world.intake.append("jobs", b"[[1],[2]]"))
        world.reserved_by_other("jobs", 3)
        world.status()
        world.clock.advance(3)
        status = json.loads(json.dumps(world.status()))
        self.assertEqual(
            {name: status[name] for name in ("role", "server_name", "instance_name", "version")},
            {
                "role": "master",
                "server_name": "example.org",
                "instance_name": "master",
                "version": "1.2.3",
            },
        )
        self.assertEqual(status["uptime_s"], 3.0)
        self.assertEqual(status["database"], {"state": "ok", "incarnation": 1, "failovers": 0})
        self.assertEqual(
            status["streams"]["jobs"],
            {
                "position": 2,
                "writers": {"master": 2},
                "removed_writers": {},
                "last_reserved": 5,
                "lag_rows": 3,
                "lag_seconds": 3.0,
                "oldest_open_reservation": {
                    "writer": "other",
                    "describe": "reservation of 3 tokens",
                    "seconds": 3.0,
                },
                "held_by": ["other"],
                "trimmed": {"upto": 0, "rows": 0, "held_by": None},
            },
        )
        self.assertEqual(status["streams"]["events"]["lag_rows"], 0)
        self.assertEqual(status["published"], {"jobs": {"facts": 2, "rows": 2}})
        self.assertEqual(status["appends"], {"jobs": {"ok": 1}})
        world.stop()

    def test_shows_connected_followers(self) -> None:
        world = started()
        factory = MasterFactory(world.scheduler, world.master, "example.org")
        peer = factory.buildProtocol(None)
        link = Link(world.clock, cast(Any, Protocol()), cast(Any, peer))
        link.connect()
        link.client.write(b"NAME bob\nREPLICATE \nPING 1\n")
        world.clock.pump([1.0] * 3)
        (follower,) = world.status()["followers"]
        self.assertEqual(follower["name"], "bob")
        self.assertEqual(follower["dialect"], "modern")
        self.assertIsNone(follower["streams"])
        self.assertEqual(follower["connected_s"], 3.0)
        self.assertEqual(world.status()["commands"], {"NAME": 1, "REPLICATE": 1, "PING": 1})
        world.master.shut_down()
        world.clock.pump([1.0] * 20)
        status = world.status()
        self.assertEqual((status["followers"], status["close_reasons"]), ([], {"shutting_down": 1}))
        world.stop()


class RemovedWriters(TestCase):
    """Those whose facts are left, and nothing else."""

    def test_are_shown_separately_from_present_writers(self) -> None:
        world = started()
        jobs = world.catalogue["jobs"]
        lease = done(world.store.open_writer("other", [jobs]))
        done(lease.append(jobs, [Draft([[jobs.kinds[""](1, None, None)]])], 0))
        world.announcer.wake("jobs")
        state = world.announcer.states["jobs"]
        self.assertIn("other", world.status()["streams"]["jobs"]["writers"])
        seen = state.observation
        assert seen is not None
        gone = replace(seen.writers["other"], is_removed=True)
        state.observation = replace(seen, writers={**seen.writers, "other": gone})
        self.assertEqual(list(world.status()["streams"]["jobs"]["writers"]), ["master"])
        done(lease.close())
        world.stop()


def worker() -> dict[str, Any]:
    """The status of a worker that has 3 facts of ``jobs`` and cannot get two more."""
    world = started()
    done(world.intake.append("jobs", b"[[1],[2],[3]]"))
    delivery = Delivery(world.scheduler, (), NullLog())
    follower = Follower(world.scheduler, world.catalogue, world.store, delivery, NullLog())
    follower.connected(FakeUpstream())
    follower.received([Position("jobs", "master", 3, 3), Position("events", "master", 0, 0)])
    world.store.away = True
    follower.received([Position("jobs", "master", 4, 5)])
    watch = LagTracker(
        world.scheduler, lambda: worker_progress(follower.positions, follower.announced)
    )
    watch.measure()
    world.clock.advance(2)
    identity = ProcessIdentity("example.org", "w1", "1.2.3", 0.0)
    now = world.clock.seconds()
    return worker_status(identity, follower, delivery, True, watch.measure(), world.coherence, now)


class WorkerStatus(TestCase):
    """A worker."""

    def test_shows_streams_and_handlers(self) -> None:
        status = json.loads(json.dumps(worker()))
        self.assertEqual((status["role"], status["connected"]), ("worker", True))
        self.assertEqual(
            status["streams"],
            {
                "jobs": {
                    "writers": {"master": {"position": 3, "heard": 5, "recorded": None}},
                    "lag_rows": 2,
                    "lag_seconds": 2.0,
                },
                "events": {
                    "writers": {"master": {"position": 0, "heard": 0, "recorded": None}},
                    "lag_rows": 0,
                    "lag_seconds": 0.0,
                },
            },
        )
        self.assertEqual(status["counts"]["rows"], {"jobs": 3})
        self.assertEqual(status["counts"]["gaps"], {"jobs": 2})
        self.assertEqual(status["counts"]["bad_rows"], {})


class CheckingReadiness(TestCase):
    """Reasons, for a person."""

    def reasons(self, world: MasterWorld) -> str:
        self.assertEqual(world.readiness.to_json()["ready"], not world.readiness.reasons())
        return "; ".join(world.readiness.reasons())

    def test_a_master_is_ready_while_it_reads_streams_and_holds_its_lease(self) -> None:
        world = MasterWorld()
        self.assertIn("not started", self.reasons(world))
        done(world.start())
        self.assertEqual(self.reasons(world), "")
        world.store.away = True
        world.clock.advance(1.0)
        self.assertIn("the database at memory cannot be reached", self.reasons(world))
        world.store.away = False
        world.clock.advance(1.0)
        self.assertEqual(self.reasons(world), "")
        done(world.writer.stop())
        self.assertIn("'master' is not held", self.reasons(world))
        world.readiness.started(False)
        self.assertIn("stopping", self.reasons(world))
        world.stop()

    def test_is_not_ready_while_a_stream_is_stuck(self) -> None:
        world = started()
        world.reserved_by_other("jobs", 5)
        world.status()
        world.clock.advance(60)
        self.assertEqual(self.reasons(world), "")
        world.clock.advance(1)
        self.assertIn("stream jobs is 5 rows behind for 61 s", self.reasons(world))
        world.stop()

    def test_a_worker_is_ready_while_it_is_connected(self) -> None:
        connected = False
        watch = LagTracker(TwistedScheduler(manual_clock()), list)
        checks = [is_connected(lambda: connected, "127.0.0.1:9"), lag_below(watch, 1.0)]
        readiness = Readiness(checks)
        readiness.started()
        self.assertEqual(readiness.reasons(), ["not connected to the master at 127.0.0.1:9"])
        connected = True
        self.assertEqual(readiness.reasons(), [])
