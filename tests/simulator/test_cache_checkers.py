"""What the simulator holds against caches and trimming: each rule alone."""

from __future__ import annotations

from unittest import TestCase

from simulator.application_data import ApplicationData
from simulator.follower_checker import FollowerChecker
from simulator.interfaces import RetentionPeriods
from simulator.transcript import Transcript
from simulator.trim_checker import TrimChecker
from simulator.truth import Truth, Violations
from simulator.workload import JOBS
from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.caches import CACHES, CachesRow

ITEM = ("item", "a", 0)


def fact(token: Token, writer: str = "w") -> Fact:
    return Fact(token, writer, (CachesRow("item", ["a", 0], 0),))


def job(token: Token, number: int) -> Fact:
    return Fact(token, "w", (JOBS.kinds[""](number, None),))


class CheckerTestCase(TestCase):
    """With a judge, whose sentences are read."""

    def setUp(self) -> None:
        self.now = 0.0
        self.transcript = Transcript(lambda: self.now)
        self.violations = Violations(self.transcript)
        self.truth = Truth()

    def assert_broken(self, *words: str) -> None:
        (sentence,) = self.violations.found
        for word in words:
            self.assertIn(word, sentence)
        self.violations.found.clear()

    def assert_well(self) -> None:
        self.assertEqual(self.violations.found, [])


class ApplicationDataTests(CheckerTestCase):
    """Versions, and what tells of them."""

    def setUp(self) -> None:
        super().setUp()
        self.data = ApplicationData(self.transcript, self.violations)

    def change(self, token: Token, writer: str) -> None:
        txn = self.data.begin()
        txn.change(ITEM)
        txn.commit()
        self.data.committed("caches", fact(token, writer))

    def least(self, **at: Token) -> int:
        return self.data.least(ITEM, {("caches", writer): token for writer, token in at.items()})

    def test_a_reader_must_see_what_its_position_covers(self) -> None:
        self.change(5, "one")
        self.change(3, "two")
        self.assertEqual(self.data.version(ITEM), 2)
        self.assertEqual(self.least(), 0)
        self.assertEqual(self.least(one=4), 0)
        self.assertEqual(self.least(one=5), 1)
        self.assertEqual(self.least(two=3), 2)
        self.assertEqual(self.data.least(ITEM, {("caches", ""): 3}), 2)
        self.assertEqual(self.data.least(ITEM, {("jobs", ""): 9}), 0)

    def test_nothing_happens_without_a_commit(self) -> None:
        txn = self.data.begin()
        txn.change(ITEM)
        txn.roll_back()
        self.assertEqual((self.data.version(ITEM), txn.versions), (0, None))

    def test_reports_a_change_that_was_not_announced(self) -> None:
        txn = self.data.begin()
        txn.change(ITEM)
        txn.commit()
        self.data.check()
        self.assert_broken("R4", "no fact announces")
        self.data.committed("caches", fact(1))
        self.data.check()
        self.assert_well()

    def test_rows_of_jobs_are_counted(self) -> None:
        at = {("jobs", "w"): 2}
        self.data.committed("marks", job(1, 4))
        self.data.committed("jobs", job(1, 4))
        self.data.committed("jobs", job(2, 6))
        self.data.committed("jobs", job(3, 8))
        self.assertEqual(self.data.version(("tally", 0)), 3)
        self.assertEqual(self.data.least(("tally", 0), at), 2)
        self.assertTrue(self.data.has_changed(("tally", 0), 1, at))
        self.assertFalse(self.data.has_changed(("tally", 0), 2, at))
        self.assertFalse(self.data.has_changed(("tally", 1), 0, at))

    def test_data_of_a_handler_belongs_to_its_process(self) -> None:
        self.data.handled("one", "jobs", "w", 9, [job(4, 0), job(7, 2)])
        self.data.handled("one", "marks", "w", 9, [job(4, 0)])
        self.assertEqual(self.data.version(("view", "one", 0)), 1)
        self.assertEqual(self.data.version(("view", "two", 0)), 0)
        self.assertEqual(self.data.least(("view", "one", 0), {("jobs", "w"): 8}), 0)
        self.assertEqual(self.data.least(("view", "one", 0), {("jobs", "w"): 9}), 1)


class TrimCheckerTests(CheckerTestCase):
    """What may be deleted."""

    def setUp(self) -> None:
        super().setUp()
        self.record: dict[tuple[str, str], Token] = {}
        self.checker = TrimChecker(
            self.violations,
            self.truth,
            lambda: self.now,
            lambda follower: self.record,
            RetentionPeriods(every_s=1, keep_s=2, max_s=10, lease_s=5),
        )
        self.checker.committed("caches", fact(4))

    def gone_at(self, now: float, stream: Stream = CACHES) -> None:
        self.now = now
        self.checker.gone(stream, [fact(4)])

    def test_accepts_a_trim_without_followers(self) -> None:
        self.gone_at(2)
        self.assert_well()
        self.assertFalse(self.truth.is_there("caches", fact(4)))
        self.assertTrue(self.truth.is_there("caches", fact(5)))

    def test_reports_a_fact_that_is_too_young(self) -> None:
        self.gone_at(1)
        self.assert_broken("TRIM", "1.0 s after its commit")

    def test_reports_a_trim_of_a_permanent_stream(self) -> None:
        self.checker.committed("jobs", fact(4))
        self.gone_at(3, JOBS)
        self.assert_broken("TRIM", "not ephemeral")

    def test_reports_an_unacknowledged_fact_during_a_lease(self) -> None:
        self.checker.renewed("follower", 5)
        self.record["caches", "w"] = 3
        self.record["caches", "other"] = 9
        self.gone_at(3)
        self.assert_broken("TRIM", "follower", "acknowledged 3")
        self.gone_at(5)
        self.assert_well()

    def test_accepts_an_acknowledged_fact(self) -> None:
        self.checker.renewed("follower", 5)
        for writer in ("w", ""):
            self.record = {("caches", writer): 4}
            self.gone_at(3)
            self.assert_well()

    def test_accepts_a_fact_beyond_the_maximum_age(self) -> None:
        self.checker.renewed("follower", 100)
        self.gone_at(10)
        self.assert_well()


class FollowerLosses(CheckerTestCase):
    """Facts that a follower may lack, and when it must be notified."""

    def setUp(self) -> None:
        super().setUp()
        for token in (1, 2, 3):
            self.truth.committed("caches", fact(token))

    def follower(self, legacy: bool = False, at: Token = 1) -> FollowerChecker:
        checker = FollowerChecker(
            self.violations,
            self.truth,
            "follower",
            linear=legacy,
            exactly_once=False,
            earliest=True,
            alone=True,
            too_long=(lambda stream, fact: False) if legacy else None,
            may_be_lost=lambda stream, writer, token: False,
        )
        if at:
            checker.applied("caches", "" if legacy else "w", 0, 1, [fact(1)])
        return checker

    def trim(self, *tokens: Token) -> None:
        for token in tokens:
            self.truth.trimmed("caches", fact(token))

    def test_reports_a_trimmed_fact_that_was_skipped(self) -> None:
        checker = self.follower()
        self.trim(1, 2)
        checker.applied("caches", "w", 2, 3, [fact(3)])
        self.assert_broken("R3", "stepped over [2]")

    def test_accepts_a_loss_that_was_reported_to_the_handler(self) -> None:
        checker = self.follower()
        self.trim(1, 2)
        checker.lost_by_trim("caches", "w", 3)
        checker.applied("caches", "w", 2, 3, [fact(3)])
        checker.reported("position", {("caches", "w"): 3})
        self.assert_well()
        self.assertEqual(len(checker.missing("caches", ["w"])), 0)

    def test_reports_a_skipped_fact_that_was_not_trimmed(self) -> None:
        checker = self.follower()
        self.trim(1, 2)
        checker.lost_by_trim("caches", "w", 3)
        checker.reported("position", {("caches", "w"): 3})
        self.assert_broken("R3", "without [3]")

    def test_reports_a_reset_without_a_loss(self) -> None:
        checker = self.follower()
        self.trim(1)
        checker.lost_by_trim("caches", "w", 3)
        self.assert_broken("R3", "it lacks none")

    def test_a_new_handler_has_lost_nothing(self) -> None:
        checker = self.follower(at=0)
        self.trim(1, 2)
        checker.applied("caches", "w", 2, 3, [fact(3)])
        self.assert_well()

    def test_the_linear_view_is_not_informed_of_losses(self) -> None:
        checker = self.follower(legacy=True)
        self.trim(1, 2)
        checker.applied("caches", "", 1, 3, [fact(3)])
        self.assert_well()
        checker = self.follower(legacy=True)
        checker.reported("position", {("caches", ""): 3})
        self.assert_broken("R3", "without [3]")
