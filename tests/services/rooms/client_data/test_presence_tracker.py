"""Reports of who syncs with a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import Unavailable
from synrepl.services.rooms.client_data.presence import ReportedActivity, ReportedSync
from synrepl.services.rooms.client_data.presence_states import (
    ONLINE,
    UNAVAILABLE,
    WITHOUT_SYNC_S,
)
from synrepl.services.rooms.client_data.presence_tracker import (
    REPEAT_S,
    REPORT_ACTIVE_S,
    REPORT_EVERY_S,
    PresenceTracker,
)
from tests.services.world import NullLog, manual_clock


class ReportsAway(Unavailable):
    """the process that decides is away"""


class RecordedReports:
    """Records reports instead of sending them."""

    is_served = True

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.is_away = False

    def decided_by(self, user_id: str) -> str:
        return "w1" if user_id < "@m" else "w2"

    async def report(
        self,
        decided_by: str,
        syncing: Sequence[ReportedSync],
        ceased: Sequence[str],
        active: Sequence[ReportedActivity],
    ) -> None:
        if self.is_away:
            raise ReportsAway()
        self.reports.append((decided_by, list(syncing), list(ceased), list(active)))


class Tracking(SynchronousTestCase):
    """A tracker under a clock of the test's."""

    def setUp(self) -> None:
        self.clock = manual_clock()
        self.presence = RecordedReports()
        self.scheduler = TwistedScheduler(self.clock)
        self.tracker = PresenceTracker(self.scheduler, self.presence, NullLog())  # type: ignore[arg-type]
        self.addCleanup(self.scheduler.stop)

    def reports(self, seconds: float = REPORT_EVERY_S) -> list[Any]:
        """The reports of some time."""
        for _ in range(round(seconds / REPORT_EVERY_S)):
            self.clock.advance(REPORT_EVERY_S)
        found, self.presence.reports = self.presence.reports, []
        return found

    def test_a_user_is_reported_to_the_process_that_decides_and_again_in_time(self) -> None:
        with self.tracker.syncing("@a:x", ONLINE), self.tracker.syncing("@z:x", UNAVAILABLE):

            def expected(ago_s: float) -> list[Any]:
                return [
                    ("w1", [("@a:x", ONLINE, ago_s)], [], []),
                    ("w2", [("@z:x", UNAVAILABLE, ago_s)], [], []),
                ]

            self.assertEqual(self.reports(), expected(REPORT_EVERY_S))
            self.assertEqual(self.reports(REPEAT_S - REPORT_EVERY_S), [])
            self.assertEqual(self.reports(), expected(REPEAT_S + REPORT_EVERY_S))

    def test_what_a_later_sync_wants_is_reported(self) -> None:
        for wanted in (ONLINE, UNAVAILABLE):
            with self.tracker.syncing("@a:x", wanted):
                report = ("@a:x", wanted, REPORT_EVERY_S)
                self.assertEqual(self.reports(), [("w1", [report], [], [])])

    def test_a_user_who_does_not_sync_again_has_ceased(self) -> None:
        with self.tracker.syncing("@a:x", ONLINE):
            self.reports()
        self.assertEqual(self.reports(WITHOUT_SYNC_S - REPORT_EVERY_S), [])
        self.assertEqual(self.reports(), [("w1", [], ["@a:x"], [])])
        self.assertEqual(len(self.tracker), 0)
        self.assertEqual(self.reports(100), [])
        self.assertFalse(self.clock.getDelayedCalls())

    def test_a_sync_without_presence_is_not_reported(self) -> None:
        with self.tracker.syncing("@a:x", None):
            self.assertEqual(self.reports(10), [])

    def test_activity_is_reported_now_and_then(self) -> None:
        for _ in range(3):
            self.tracker.acts("@a:x")
        reported = [("w1", [], [], [("@a:x", REPORT_EVERY_S)])]
        self.assertEqual(self.reports(), reported)
        self.tracker.acts("@a:x")
        self.assertEqual(self.reports(REPORT_ACTIVE_S), [])
        self.tracker.acts("@a:x")
        self.assertEqual(self.reports(), reported)

    def test_the_last_activity_before_a_report_is_reported(self) -> None:
        self.tracker.acts("@a:x")
        self.clock.advance(0.5)
        self.tracker.acts("@a:x")
        self.clock.advance(REPORT_EVERY_S - 0.5)
        self.assertEqual(self.presence.reports, [("w1", [], [], [("@a:x", REPORT_EVERY_S - 0.5)])])

    def test_what_could_not_be_reported_is_reported_later(self) -> None:
        self.presence.is_away = True
        with self.tracker.syncing("@a:x", ONLINE):
            self.tracker.acts("@a:x")
            self.assertEqual(self.reports(), [])
            self.presence.is_away = False
            ago_s = 2 * REPORT_EVERY_S
            expected = [("w1", [("@a:x", ONLINE, ago_s)], [], [("@a:x", ago_s)])]
            self.assertEqual(self.reports(), expected)
