"""The order in which a batch of imported events is stored."""

from __future__ import annotations

from unittest import TestCase

from synrepl.rooms import Event, Room
from synrepl.services.rooms.importing.audited import as_arrived
from synrepl.services.rooms.importing.sink import ImportedEvent
from synrepl.storage.foreign.rooms.events import RoomPosition
from tests.rooms.small_rooms import SmallRoom


class OrderOfArrival(TestCase):
    def setUp(self) -> None:
        self.small = SmallRoom("10")
        self.room = Room(self.small.version)
        for each in (*self.small.base, self.small.carol):
            self.room.receive(each)
        self.older = self.small.message(self.small.carol)
        self.newer = self.small.message(self.older)

    def imported(self, *events: Event) -> list[ImportedEvent]:
        """Events as read in this order, and as they arrived."""
        for each in (self.older, self.newer):
            self.room.receive(each)
        return [
            ImportedEvent(event, self.room[event.event_id], RoomPosition(7, stream))
            for stream, event in enumerate(events)
        ]

    def test_events_that_arrived_in_the_order_of_causes_stay_in_it(self) -> None:
        given = self.imported(self.small.carol, self.older, self.newer)
        self.assertEqual(as_arrived(given), given)
        self.assertEqual(as_arrived(given[::-1]), given)

    def test_causes_come_first_even_if_they_arrived_later(self) -> None:
        """As when the newer one was an outlier until then, and claimed too low a depth."""
        given = self.imported(self.small.carol, self.newer, self.older)
        self.assertEqual(as_arrived(given), [given[0], given[2], given[1]])
