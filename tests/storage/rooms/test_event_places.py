"""Places of events along a main line, given by what is known of each event alone."""

from __future__ import annotations

from collections.abc import Collection
from unittest import TestCase

from synrepl.storage.rooms.visibility.audience import BESIDE_BIT, FIRST_BIT, NEAR_BIT
from synrepl.storage.rooms.visibility.event_places import (
    EventPlace,
    EventPlaces,
    LinePosition,
    PlacedEvent,
)

#: The slots of memberships.
MEMBERS = range(10, 20)


def placed(group: int, topological: int, pos: int, overlay: Collection[int] = ()) -> PlacedEvent:
    """A live message, with its group at a position of the main line."""
    return PlacedEvent(True, topological, None, group, group, True, pos, overlay)


class PlacesOnALine(TestCase):
    """A line with positions 5 and 7, at which slot 11 changed."""

    def setUp(self) -> None:
        positions = [LinePosition(5, 20, None), LinePosition(7, 30, 11)]
        self.places = EventPlaces(positions, highest=34)

    def test_a_group_begins_above_what_its_reach_tells(self) -> None:
        self.assertEqual(
            self.places.place(placed(8, 31, 8), MEMBERS),
            EventPlace(FIRST_BIT, 34),
        )
        self.assertEqual(self.places.place(placed(9, 40, 9), MEMBERS), EventPlace(FIRST_BIT, None))

    def test_what_is_below_the_newest_position_begins_no_group(self) -> None:
        self.assertEqual(self.places.place(placed(8, 29, 8), MEMBERS).bits & FIRST_BIT, 0)
        self.assertEqual(self.places.place(placed(8, 30, 8), MEMBERS).bits, FIRST_BIT)

    def test_memberships_near_the_line_differ_by_branch_and_by_what_the_line_changed(self) -> None:
        self.assertEqual(
            self.places.place(placed(6, 22, 5, {12, 30}), MEMBERS),
            EventPlace(NEAR_BIT, None, [11, 12]),
        )
        self.assertEqual(
            self.places.place(placed(6, 31, 7, {12}), MEMBERS), EventPlace(NEAR_BIT, None, [12])
        )

    def test_what_is_below_its_own_position_is_beside_the_line(self) -> None:
        self.assertEqual(self.places.place(placed(6, 19, 5), MEMBERS).bits, BESIDE_BIT)
