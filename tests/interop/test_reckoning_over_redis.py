"""What is due to a real worker over Redis."""

from __future__ import annotations

from collections import Counter
from unittest import TestCase

from interop.reckoning import LiveReckoning, Stand
from interop.releases import CURRENT


class LiveReckoningTests(TestCase):
    """Rows that were heard, and positions that were told."""

    def setUp(self) -> None:
        self.reckoning = LiveReckoning(CURRENT)
        self.reckoning.begin("first")
        self.reckoning.appended("events", [(1, 1), (2, 2)])
        self.reckoning.appended("events", [(3, 1), (4, 1)])
        self.reckoning.appended("groups", [(1, 1)])  # which is no stream of this release

    def test_what_was_heard_is_due_and_the_last_token_is_where_it_stands(self) -> None:
        self.reckoning.over(heard=True)
        self.assertEqual(self.reckoning.due(), {"events": 5})
        self.assertEqual(self.reckoning.tokens(), {"events": 4})

    def test_what_was_missed_is_told_of_by_positions(self) -> None:
        self.reckoning.over(heard=False)
        self.assertEqual(self.reckoning.due(), {})
        self.assertEqual(self.reckoning.tokens(), {"events": 4})

    def test_rows_add_up_and_a_writer_that_pauses_holds_nobody_back(self) -> None:
        self.reckoning.over(heard=True)
        self.reckoning.begin("second")
        self.reckoning.appended("events", [(5, 1)])
        self.reckoning.over(heard=True)
        self.assertEqual(self.reckoning.due(), {"events": 6})
        self.assertEqual(self.reckoning.tokens(), {"events": 5})
        self.reckoning.begin("third")
        self.reckoning.appended("events", [(6, 1)])
        self.reckoning.over(heard=False)
        self.assertEqual(self.reckoning.due(), {"events": 6})
        self.assertEqual(self.reckoning.tokens(), {"events": 6})

    def test_streams_that_share_a_sequence(self) -> None:
        self.reckoning.appended("device_lists", [(3, 1)])
        self.reckoning.appended("user_signature", [(4, 1)])  # which is no stream of this release
        self.assertEqual(self.reckoning.tokens(), {"events": 4, "device_lists": 4})

    def stand(self, counted: int, position: int) -> Stand:
        self.reckoning.over(heard=False)
        rows, positions = Counter(events=counted), {"events": position}
        phase = self.reckoning.phases[-1]
        return Stand(phase, Counter(events=5), rows, self.reckoning.tokens(), positions)

    def test_a_stand_is_well_only_with_every_row_and_where_it_has_to_be(self) -> None:
        self.assertTrue(self.stand(5, 4).well)
        self.assertFalse(self.stand(4, 4).well)
        self.assertFalse(self.stand(6, 4).well)
        for position in (3, 5):
            stand = self.stand(5, position)
            self.assertFalse(stand.well)
            self.assertEqual(stand.strayed, [f"events at {position} instead of 4"])

    def test_streams_of_which_it_shows_no_position_do_not_stray(self) -> None:
        self.reckoning.over(heard=True)
        rows = Counter(events=5)
        stand = Stand(self.reckoning.phases[-1], rows, rows, self.reckoning.tokens(), {})
        self.assertTrue(stand.well)
