"""The report on watch and doctor beside a real server: its checks, and how failures show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import TestCase

from interop import watch_and_doctor_report
from interop.__main__ import BESIDE, MASTERS, REDIS, WORKERS, wanted
from interop.observer import QuietSnapshot, StoppedProcess
from interop.releases import CURRENT, RELEASES
from interop.synapse_over_redis import MAIN, NAMES
from interop.synapse_tables import OpenTransaction
from interop.synrepl_watch import Diagnosis, WatchSample
from interop.watch_and_doctor_report import (
    StoppedAfterCommit,
    StoppedInTransaction,
    WatchDoctorResult,
)

WELL = Diagnosis(0, [])
ALARM = "events of persister1 is at 5 in the database and was announced only up to 4, for 4 s"
FOUND = {"id": "x", "where": "backend 12", "what": "backend 12 (persister1), idle"}


def look(rows: int, **more: Any) -> WatchSample:
    """All eight processes, each at 1."""
    numbers = {"heard": 1, "committed": None, "rows": rows, "lag_seconds": 0.5}
    names = ["master" if name == MAIN else name for name in NAMES]
    streams = [{"stream": "caches", "writer": name, **numbers} for name in names]
    section = {"connected": True, "trouble": [], "alarms": [], "streams": streams}
    return WatchSample({**section, **more})


def quiet_snapshot(rows: int) -> QuietSnapshot:
    seen = look(rows)
    announced = seen.by_key("heard")
    return QuietSnapshot(announced, Counter(dict.fromkeys(announced, rows)), {}, seen)


HELD = StoppedInTransaction(2.0, OpenTransaction(12, "persister1"), Diagnosis(1, [FOUND]), WELL)
SILENT = StoppedAfterCommit(StoppedProcess([], 5, 4), [ALARM], 4.5, WELL)
GOOD = WatchDoctorResult(
    quiet_snapshot(1),
    quiet_snapshot(2),
    quiet_snapshot(4),
    400,
    30.0,
    Counter(),
    [look(2)],
    [WELL],
    HELD,
    SILENT,
    [],
)


class WatchDoctorReport(TestCase):
    """One thing at a time goes wrong."""

    def fails(self, **changed: Any) -> Sequence[str]:
        """The claims that do not hold."""
        checks = watch_and_doctor_report.section(replace(GOOD, **changed)).checks
        return [check.claim for check in checks if not check.holds]

    def test_passes_a_good_run(self) -> None:
        self.assertEqual(self.fails(), [])
        lines = watch_and_doctor_report.section(GOOD).lines()
        self.assertIn("| caches | master     |         1 |           1 |", "\n".join(lines))

    def test_fails_on_wrong_snapshots(self) -> None:
        key = ("caches", "master")
        for when in ("before", "after", "last"):
            good = getattr(GOOD, when)
            self.assertEqual(len(self.fails(**{when: replace(good, announced={key: 1})})), 1)
            self.assertEqual(len(self.fails(**{when: replace(good, recorded={key: 2})})), 2)

    def test_fails_on_miscounted_rows_and_missing_processes(self) -> None:
        section = self.fails(last=replace(GOOD.last, rows=Counter()))
        self.assertEqual(section, ["watch counted the rows that were recorded"])
        few = look(4)
        streams = [each for each in few.report["streams"] if each["writer"] != "sync1"]
        announced = {key: 1 for key in GOOD.last.announced if key[1] != "sync1"}
        rows = Counter(dict.fromkeys(announced, 4) | {("caches", "sync1"): 1})
        last = QuietSnapshot(announced, rows, {}, WatchSample({**few.report, "streams": streams}))
        self.assertIn("watch heard all eight processes", self.fails(last=last))

    def test_fails_on_alarms_under_traffic(self) -> None:
        for more in ({"connected": False}, {"trouble": ["t"]}, {"alarms": ["a"]}):
            self.assertEqual(len(self.fails(samples=[look(2), look(2, **more)])), 1)
        self.assertEqual(self.fails(said=["oh"]), ["watch had no errors to print"])
        wrong = Diagnosis(1, [FOUND])
        self.assertEqual(len(self.fails(diagnoses=[WELL, wrong])), 1)

    def test_fails_when_the_open_transaction_is_not_found(self) -> None:
        for failing, stopped_in_transaction in (
            (2, replace(HELD, oldest=None)),
            (2, replace(HELD, oldest=OpenTransaction(12, "persister2"))),
            (1, replace(HELD, then=Diagnosis(0, [FOUND]))),
            (1, replace(HELD, then=Diagnosis(1, [{**FOUND, "where": "backend 13"}]))),
            (1, replace(HELD, after=Diagnosis(1, [FOUND]))),
        ):
            self.assertEqual(
                len(self.fails(stopped_in_transaction=stopped_in_transaction)), failing
            )

    def test_fails_when_the_silent_writer_is_not_reported(self) -> None:
        other = ALARM.replace("persister1", "writer1")
        for stopped_after_commit in (
            replace(SILENT, seconds=5.1),
            replace(SILENT, alarms=[ALARM, other]),
            replace(SILENT, alarms=[ALARM.replace("events", "caches")]),
            replace(SILENT, after=Diagnosis(1, [FOUND])),
        ):
            self.assertEqual(len(self.fails(stopped_after_commit=stopped_after_commit)), 1)


class Parts(TestCase):
    """What has to be installed."""

    def test_need_their_releases(self) -> None:
        self.assertEqual(wanted([WORKERS]), [*RELEASES])
        self.assertEqual(wanted([REDIS, BESIDE]), [CURRENT])
        self.assertEqual(wanted([BESIDE, MASTERS]), [CURRENT, *RELEASES])
