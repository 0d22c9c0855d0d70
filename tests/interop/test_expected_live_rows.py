"""The rows and positions expected of a real worker over Redis."""

from __future__ import annotations

from collections import Counter
from unittest import TestCase

from interop.expected_rows import ExpectedLiveRows, RedisPhaseResult
from interop.releases import CURRENT


class ExpectedLiveRowsTests(TestCase):
    """Rows that were received, and positions that were announced."""

    def setUp(self) -> None:
        self.expected = ExpectedLiveRows(CURRENT)
        self.expected.begin("first")
        self.expected.appended("events", [(1, 1), (2, 2)])
        self.expected.appended("events", [(3, 1), (4, 1)])
        self.expected.appended("groups", [(1, 1)])  # which is no stream of this release

    def test_received_rows_are_due_and_the_last_token_is_the_position(self) -> None:
        self.expected.end(connected=True)
        self.assertEqual(self.expected.due(), {"events": 5})
        self.assertEqual(self.expected.tokens(), {"events": 4})

    def test_missed_rows_are_covered_by_positions(self) -> None:
        self.expected.end(connected=False)
        self.assertEqual(self.expected.due(), {})
        self.assertEqual(self.expected.tokens(), {"events": 4})

    def test_rows_add_up_and_a_paused_writer_does_not_hold_others_back(self) -> None:
        self.expected.end(connected=True)
        self.expected.begin("second")
        self.expected.appended("events", [(5, 1)])
        self.expected.end(connected=True)
        self.assertEqual(self.expected.due(), {"events": 6})
        self.assertEqual(self.expected.tokens(), {"events": 5})
        self.expected.begin("third")
        self.expected.appended("events", [(6, 1)])
        self.expected.end(connected=False)
        self.assertEqual(self.expected.due(), {"events": 6})
        self.assertEqual(self.expected.tokens(), {"events": 6})

    def test_streams_that_share_a_sequence_share_positions(self) -> None:
        self.expected.appended("device_lists", [(3, 1)])
        self.expected.appended("user_signature", [(4, 1)])  # which is no stream of this release
        self.assertEqual(self.expected.tokens(), {"events": 4, "device_lists": 4})

    def result(self, counted: int, position: int) -> RedisPhaseResult:
        self.expected.end(connected=False)
        rows, positions = Counter(events=counted), {"events": position}
        phase = self.expected.phases[-1]
        return RedisPhaseResult(phase, Counter(events=5), rows, self.expected.tokens(), positions)

    def test_a_result_is_good_only_with_every_row_and_position(self) -> None:
        self.assertTrue(self.result(5, 4).well)
        self.assertFalse(self.result(4, 4).well)
        self.assertFalse(self.result(6, 4).well)
        for position in (3, 5):
            result = self.result(5, position)
            self.assertFalse(result.well)
            self.assertEqual(result.wrong_positions, [f"events at {position} instead of 4"])

    def test_streams_without_a_reported_position_do_not_count(self) -> None:
        self.expected.end(connected=True)
        rows = Counter(events=5)
        result = RedisPhaseResult(self.expected.phases[-1], rows, rows, self.expected.tokens(), {})
        self.assertTrue(result.well)
