"""What is due to a real worker over Redis."""

from __future__ import annotations

from collections import Counter
from unittest import TestCase

from interop.expected_rows import ExpectedLiveRows, RedisPhaseResult
from interop.releases import CURRENT


class ExpectedLiveRowsTests(TestCase):
    """Rows that were heard, and positions that were told."""

    def setUp(self) -> None:
        self.expected = ExpectedLiveRows(CURRENT)
        self.expected.begin("first")
        self.expected.appended("events", [(1, 1), (2, 2)])
        self.expected.appended("events", [(3, 1), (4, 1)])
        self.expected.appended("groups", [(1, 1)])  # which is no stream of this release

    def test_received_rows_are_due_and_the_last_token_is_the_position(self) -> None:
        self.expected.over(heard=True)
        self.assertEqual(self.expected.due(), {"events": 5})
        self.assertEqual(self.expected.tokens(), {"events": 4})

    def test_missed_rows_are_covered_by_positions(self) -> None:
        self.expected.over(heard=False)
        self.assertEqual(self.expected.due(), {})
        self.assertEqual(self.expected.tokens(), {"events": 4})

    def test_rows_add_up_and_a_paused_writer_does_not_hold_others_back(self) -> None:
        self.expected.over(heard=True)
        self.expected.begin("second")
        self.expected.appended("events", [(5, 1)])
        self.expected.over(heard=True)
        self.assertEqual(self.expected.due(), {"events": 6})
        self.assertEqual(self.expected.tokens(), {"events": 5})
        self.expected.begin("third")
        self.expected.appended("events", [(6, 1)])
        self.expected.over(heard=False)
        self.assertEqual(self.expected.due(), {"events": 6})
        self.assertEqual(self.expected.tokens(), {"events": 6})

    def test_streams_that_share_a_sequence_share_positions(self) -> None:
        self.expected.appended("device_lists", [(3, 1)])
        self.expected.appended("user_signature", [(4, 1)])  # which is no stream of this release
        self.assertEqual(self.expected.tokens(), {"events": 4, "device_lists": 4})

    def stand(self, counted: int, position: int) -> RedisPhaseResult:
        self.expected.over(heard=False)
        rows, positions = Counter(events=counted), {"events": position}
        phase = self.expected.phases[-1]
        return RedisPhaseResult(phase, Counter(events=5), rows, self.expected.tokens(), positions)

    def test_a_result_is_good_only_with_every_row_and_position(self) -> None:
        self.assertTrue(self.stand(5, 4).well)
        self.assertFalse(self.stand(4, 4).well)
        self.assertFalse(self.stand(6, 4).well)
        for position in (3, 5):
            stand = self.stand(5, position)
            self.assertFalse(stand.well)
            self.assertEqual(stand.strayed, [f"events at {position} instead of 4"])

    def test_streams_without_a_reported_position_do_not_count(self) -> None:
        self.expected.over(heard=True)
        rows = Counter(events=5)
        stand = RedisPhaseResult(self.expected.phases[-1], rows, rows, self.expected.tokens(), {})
        self.assertTrue(stand.well)
