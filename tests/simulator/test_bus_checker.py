"""Messages on the bus are checked against commits, and against what was announced to whom."""

from __future__ import annotations

from unittest import TestCase

from simulator.bus_checker import BusChecker
from simulator.transcript import Transcript
from simulator.truth import Truth, Violations
from simulator.workload import JOBS
from synrepl.streams.definition import Fact


class BusMessages(TestCase):
    """Writer ``w`` has committed 1, 3 and 5, and was published at 6."""

    def setUp(self) -> None:
        self.violations = Violations(Transcript(lambda: 0.0))
        truth = Truth()
        for token in (1, 3, 5):
            truth.committed(JOBS.name, Fact(token, "w", ()))
        truth.publish(JOBS.name, "w", 6)
        self.checker = BusChecker(self.violations, truth)

    def publish(self, *lines: str, by: str = "w#1.1") -> list[str]:
        """The rules that are broken by then."""
        for line in lines:
            self.checker.published(by, "example.org", line.encode())
        return [sentence.partition(":")[0] for sentence in self.violations.found]

    def test_accepts_increasing_positions_and_rows(self) -> None:
        self.assertEqual(
            self.publish(
                "POSITION jobs w 0 0",
                "RDATA jobs w 1 [1,null]",
                "RDATA jobs w batch [2,null]",
                "RDATA jobs w 3 [3,null]",
                "POSITION jobs w 6 6",
                "REPLICATE ",
            ),
            [],
        )
        self.assertEqual(self.publish("POSITION jobs w 6 6", by="master#2.1"), [])
        self.assertEqual(self.checker.messages, 7)

    def test_reports_a_fact_that_was_left_out(self) -> None:
        self.assertEqual(self.publish("RDATA jobs w 1 [1]", "RDATA jobs w 5 [5]"), ["R3"])

    def test_reports_a_position_that_hides_a_fact(self) -> None:
        self.assertEqual(self.publish("RDATA jobs w 1 [1]", "POSITION jobs w 1 4"), ["R3"])

    def test_accepts_a_position_that_shows_a_gap(self) -> None:
        self.assertEqual(self.publish("RDATA jobs w 1 [1]", "POSITION jobs w 4 4"), [])

    def test_reports_another_sender_that_hides_a_fact(self) -> None:
        self.publish("RDATA jobs w 1 [1]")
        self.assertEqual(self.publish("RDATA jobs w 5 [5]", by="master#2.1"), ["R3"])

    def test_reports_a_row_that_goes_back(self) -> None:
        self.assertEqual(self.publish("POSITION jobs w 3 3", "RDATA jobs w 3 [3]"), ["R2"])

    def test_reports_a_position_that_goes_back_on_another_connection(self) -> None:
        self.publish("POSITION jobs w 5 5")
        self.assertEqual(self.publish("POSITION jobs w 3 3", by="w#1.2"), ["R2"])

    def test_another_sender_may_be_behind(self) -> None:
        self.publish("POSITION jobs w 5 5")
        self.assertEqual(self.publish("POSITION jobs w 3 3", by="master#2.1"), [])

    def test_reports_more_than_was_published(self) -> None:
        self.assertEqual(self.publish("POSITION jobs w 7 7"), ["R2"])

    def test_reports_a_position_within_a_batch(self) -> None:
        self.assertEqual(self.publish("RDATA jobs w batch [1]", "POSITION jobs w 0 0"), ["R2"])

    def test_the_next_connection_ends_a_batch(self) -> None:
        self.publish("RDATA jobs w batch [1]")
        self.assertEqual(self.publish("POSITION jobs w 0 0", by="w#1.2"), [])
