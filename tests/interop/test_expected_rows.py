"""What is due to real workers."""

from __future__ import annotations

from unittest import TestCase

from interop.expected_rows import ExpectedRows, Phase
from interop.releases import LEGACY, MODERN, OLDEST


class ExpectedRowsTests(TestCase):
    """Facts at tokens, and where they are asked from."""

    def setUp(self) -> None:
        self.expected = ExpectedRows()

    def phase(self, run: int, **appended: list[tuple[int, int]]) -> Phase:
        phase = Phase("a phase", run, appended)
        self.expected.phases.append(phase)
        return phase

    def test_every_row_above_the_token_is_due(self) -> None:
        self.phase(0, events=[(1, 1), (2, 2), (3, 1)])
        self.expected.diagnoses(LEGACY, {"events": 1})
        self.assertEqual(self.expected.due[LEGACY], {"events": 3})
        self.assertEqual(self.expected.due[MODERN], {})

    def test_live_rows_are_due_to_subscribers_of_the_stream(self) -> None:
        self.phase(0)
        self.expected.diagnoses(LEGACY, {"events": 0, "public_rooms": 0})
        self.expected.sent_live(self.phase(0, events=[(1, 2)], public_rooms=[(1, 1)]))
        self.expected.sent_live(self.phase(0, pushers=[(1, 4)], sticky_events=[(1, 8)]))
        self.assertEqual(self.expected.due[LEGACY], {"events": 2, "public_rooms": 1})
        self.assertEqual(+self.expected.due[MODERN], {"events": 2, "pushers": 4})

    def test_counts_rows_requested_again_and_skipped(self) -> None:
        self.phase(0, events=[(1, 1), (2, 1)], receipts=[(1, 1), (2, 1)], typing=[(1, 1)])
        self.expected.diagnoses(LEGACY, {"events": 0, "receipts": 0, "typing": 0})
        self.phase(1, events=[(3, 1)], receipts=[(3, 1)], typing=[(1, 1)])
        self.expected.diagnoses(LEGACY, {"events": 1, "receipts": 3, "typing": 1})
        self.assertEqual(self.expected.asked_again(LEGACY), {"events": 1})
        self.assertEqual(self.expected.passed_over(LEGACY), {"receipts": 1})
        self.assertEqual(self.expected.asked_again(OLDEST), {})

    def test_rows_in_memory_are_lost_with_the_master(self) -> None:
        self.phase(0, typing=[(1, 1), (2, 1)])
        self.phase(1, typing=[(1, 4)])
        self.expected.diagnoses(LEGACY, {"typing": 0})
        self.assertEqual(self.expected.due[LEGACY], {"typing": 4})
