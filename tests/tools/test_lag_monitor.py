"""Announced positions are compared with committed ones."""

from __future__ import annotations

from unittest import TestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.tools.watch import announcements
from synrepl.tools.watch.announcements import Announcements
from synrepl.tools.watch.lag_monitor import ANSWER_S, RATE_S, SILENT_S, LagMonitor, WriterLag
from synrepl.wire.commands import Ping, Position, Rdata, Replicate
from tests.services.world import manual_clock


class LagMonitors(TestCase):
    def setUp(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.announcements = Announcements(self.scheduler)
        self.monitor = LagMonitor(self.scheduler, self.announcements)

    def rows(self, stream: str, writer: str | None, *tokens: int | None) -> None:
        self.announcements.received([Rdata(stream, writer, token, b"[]") for token in tokens])

    def position(self, stream: str, writer: str | None, new: int) -> None:
        self.announcements.received([Position(stream, writer, None, new)])

    def measured(self) -> dict[tuple[str, str], WriterLag]:
        return {(one.stream, one.writer): one for one in self.monitor.measure()}

    def after(self, seconds: float) -> dict[tuple[str, str], WriterLag]:
        """The lags after a time, measured each second."""
        found = self.measured()
        for _ in range(round(seconds)):
            self.clock.advance(1)
            found = self.measured()
        return found

    def test_keeps_the_highest_position_and_counts_rows(self) -> None:
        self.announcements.received([Ping(1)])
        self.position("events", "w1", 5)
        self.rows("events", "w1", None, None, 7)
        self.rows("backfill", "w1", 9, 8)  # newest first
        self.position("typing", "w1", 3)
        self.position("typing", "w1", 1)  # its writer has restarted
        self.assertEqual(
            self.announcements.positions,
            {("events", "w1"): 7, ("backfill", "w1"): 9, ("typing", "w1"): 1},
        )
        self.assertEqual(self.announcements.rows[("events", "w1")], 3)
        one = self.measured()["events", "w1"]
        self.assertEqual((one.heard, one.committed, one.lag_rows), (7, None, 0))
        self.assertFalse(one.silent)

    def test_bounds_the_number_of_writers(self) -> None:
        most = announcements.MAX_KEYS
        for n in range(most + 5):
            self.position(f"s{n}", "w", 1)
            self.rows(f"s{n}", "w", 2)
        self.assertEqual(
            (len(self.announcements.positions), len(self.announcements.rows)), (most, most)
        )

    def test_ignores_names_that_are_too_long(self) -> None:
        longest = announcements.MAX_NAMES
        self.position("s", "w" * (longest - 1), 1)
        self.position("s", "w" * longest, 1)
        self.rows("s" * 10**6, "w", 1)
        self.assertEqual(len(self.announcements.positions), 1)

    def test_a_lag_that_lasts_is_silence(self) -> None:
        self.position("events", "w1", 5)
        self.monitor.update_committed({"events": {"w1": 5}})
        self.assertEqual(self.after(60)["events", "w1"].lag_seconds, 0)
        self.monitor.update_committed({"events": {"w1": 8}})
        one = self.after(SILENT_S - 1)["events", "w1"]
        self.assertEqual((one.lag_rows, one.lag_seconds, one.silent), (3, SILENT_S - 1, False))
        one = self.after(1)["events", "w1"]
        self.assertTrue(one.silent)
        self.assertEqual(
            one.alarm,
            "events of w1 is at 8 in the database and was announced only up to 5, for 3 s",
        )
        self.rows("events", "w1", 8)
        self.assertFalse(self.measured()["events", "w1"].silent)

    def test_a_small_constant_lag_is_not_silence(self) -> None:
        self.position("events", "w1", 0)
        for token in range(1, 30):
            self.monitor.update_committed({"events": {"w1": token}})
            self.assertFalse(self.after(1)["events", "w1"].silent)
            self.rows("events", "w1", token)

    def test_a_recorded_writer_that_announces_nothing_is_silent(self) -> None:
        self.position("events", "w1", 5)
        committed = {"events": {"w1": 5, "w2": 6, "w3": 0}, "receipts": {"w4": 2}, "x": {"w1": 1}}
        self.monitor.update_committed(committed, ["events", "receipts"])
        one = self.after(SILENT_S - 1)["events", "w2"]
        self.assertEqual((one.heard, one.committed, one.lag_rows), (None, 6, 0))
        self.assertFalse(one.silent)
        found = self.after(1)
        self.assertEqual(
            {key for key, one in found.items() if one.silent},
            {("events", "w2"), ("receipts", "w4")},
        )
        self.assertEqual(set(found), {("events", "w1"), ("events", "w2"), ("receipts", "w4")})
        self.assertEqual(
            found["events", "w2"].alarm,
            "events of w2 is at 6 in the database and has not been heard of, for 3 s",
        )
        self.assertEqual(found["events", "w2"].to_json()["heard"], None)
        self.position("events", "w2", 6)
        self.assertFalse(self.measured()["events", "w2"].silent)

    def test_a_writer_only_in_the_table_is_monitored_once_it_commits(self) -> None:
        self.position("caches", "w1", 5)
        self.monitor.update_committed({"caches": {"w1": 5, "gone": 4}})
        one = self.after(60)["caches", "gone"]
        self.assertEqual((one.committed, one.lag_rows, one.silent), (4, 0, False))
        self.monitor.update_committed({"caches": {"w1": 5, "gone": 7}})
        one = self.after(SILENT_S)["caches", "gone"]
        self.assertEqual((one.lag_rows, one.lag_seconds, one.silent), (3, SILENT_S, True))

    def test_a_writer_that_is_not_in_the_database_has_no_lag(self) -> None:
        self.position("typing", "w1", 5)
        self.position("events", "new", 9)
        self.monitor.update_committed({"events": {"w1": 5}}, ["events"])
        found = self.after(60)
        for key in (("typing", "w1"), ("events", "new")):
            self.assertEqual((found[key].committed, found[key].lag_rows), (None, 0))
            self.assertFalse(found[key].silent)

    def test_a_new_writer_is_monitored_once_it_announces(self) -> None:
        self.position("events", "w1", 5)
        self.monitor.update_committed({"events": {"w1": 5}}, ["events"])
        self.assertEqual(list(self.after(10)), [("events", "w1")])
        self.rows("events", "w2", 6)
        self.monitor.update_committed({"events": {"w1": 5, "w2": 6}}, ["events"])
        one = self.after(10)["events", "w2"]
        self.assertEqual((one.heard, one.committed, one.rows, one.silent), (6, 6, 1, False))

    def replicate(self) -> None:
        """A REPLICATE that all processes receive."""
        self.announcements.received([Replicate()])

    def test_a_writer_that_stops_answering_is_silent(self) -> None:
        for writer in ("w1", "w2"):
            self.position("events", writer, 5)
        self.position("caches", "w2", 1)
        self.clock.advance(60)
        self.assertEqual(self.monitor.silent_writers(), [])  # nothing was requested
        self.replicate()
        self.position("events", "w1", 5)
        self.clock.advance(ANSWER_S - 1)
        self.assertEqual(self.monitor.silent_writers(), [])
        self.replicate()
        self.rows("events", "w1", 6)
        self.clock.advance(1)
        (silent,) = self.monitor.silent_writers()
        self.assertEqual(silent, ("w2", ["caches", "events"], ANSWER_S))
        self.assertEqual(
            silent.alarm,
            "w2 has not answered REPLICATE for 5 s: it does not run, or hangs;"
            " it writes caches, events",
        )
        self.position("caches", "w2", 1)
        self.assertEqual(self.monitor.silent_writers(), [])

    def test_a_lost_connection_clears_pending_requests(self) -> None:
        self.position("events", "w1", 5)
        self.replicate()
        self.announcements.disconnected()
        self.clock.advance(60)
        self.assertEqual(self.monitor.silent_writers(), [])
        self.replicate()
        self.clock.advance(ANSWER_S)
        self.assertEqual([each.writer for each in self.monitor.silent_writers()], ["w1"])

    def test_a_writer_is_silent_if_nothing_was_requested_meanwhile(self) -> None:
        self.assertFalse(self.announcements.has_silent_writer(30))  # no writer is known
        self.position("events", "w1", 5)
        self.position("events", "w2", 5)
        self.clock.advance(20)
        self.rows("events", "w1", 6)
        self.assertFalse(self.announcements.has_silent_writer(30))
        self.clock.advance(10)
        self.assertTrue(self.announcements.has_silent_writer(30))
        self.replicate()
        self.assertFalse(self.announcements.has_silent_writer(30))
        for writer in ("w1", "w2"):
            self.position("events", writer, 6)
        self.clock.advance(29)
        self.assertFalse(self.announcements.has_silent_writer(30))
        self.clock.advance(1)
        self.assertTrue(self.announcements.has_silent_writer(30))

    def test_no_writer_is_silent_while_disconnected(self) -> None:
        self.position("events", "w1", 5)
        self.monitor.update_committed({"events": {"w1": 8, "w2": 9}}, ["events"])
        for _ in range(10):
            self.clock.advance(1)
            seen = self.monitor.measure(is_receiving=False)
        self.assertEqual([one.silent for one in seen], [False, False])
        self.assertEqual(seen[0].lag_seconds, 9)
        # After a reconnect all writers have the full time to answer again.
        found = self.after(SILENT_S - 1)
        self.assertFalse(any(one.silent for one in found.values()))
        self.assertTrue(all(one.silent for one in self.after(1).values()))

    def test_measures_nothing_before_the_first_announcement(self) -> None:
        self.monitor.update_committed({"events": {"w1": 8}}, ["events"])
        self.assertEqual(self.after(60), {})

    def test_the_linear_position_is_compared_with_all_writers(self) -> None:
        self.position("events", None, 5)
        self.monitor.update_committed({"events": {"w1": 5, "w2": 6}})
        found = self.after(1)
        self.assertEqual(list(found), [("events", "")])
        self.assertEqual((found["events", ""].committed, found["events", ""].lag_rows), (6, 1))
        self.assertIsNone(found["events", ""].to_json()["writer"])

    def test_computes_rates_over_a_window(self) -> None:
        self.position("events", "w1", 0)
        self.assertEqual(self.measured()["events", "w1"].rate, 0)
        for second in range(5):
            self.rows("events", "w1", *range(second * 10, second * 10 + 10))
            found = self.after(1)
        self.assertEqual(found["events", "w1"].rate, 10)
        self.assertEqual(self.after(RATE_S + 1)["events", "w1"].rate, 0)
