"""The order in which a batch of imported events is stored, and the stream that events of a retry go into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from unittest import TestCase

from twisted.trial.unittest import TestCase as AsyncTestCase

from synrepl.rooms import Event, Room, RoomVersion
from synrepl.services.rooms.importing.audited import as_arrived
from synrepl.services.rooms.importing.sink import ImportedEvent, LateEvents
from synrepl.storage.foreign.rooms.events import RoomPosition
from tests.rooms.small_rooms import SmallRoom
from tests.services.rooms.importing_case import RoomsInMemory


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


class GivenEvents(RoomsInMemory):
    """Keeps what it is given to store."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[ImportedEvent] = []

    async def store(
        self, room_id: str, version: RoomVersion, events: Sequence[ImportedEvent]
    ) -> Mapping[str, str]:
        """Keep them."""
        self.given += events
        return {}


class StreamOfLateEvents(AsyncTestCase):
    async def test_events_up_to_where_the_import_was_are_backfilled_but_no_outliers(self) -> None:
        small = SmallRoom("10")
        upto = RoomPosition(7, 3)
        positions = RoomPosition(6, 9), upto, RoomPosition(7, 4), RoomPosition(6, 9)
        judged = Room(small.version).receive(small.create)[0]
        events = [
            ImportedEvent(small.create, judged, position, outlier=place == 3)
            for place, position in enumerate(positions)
        ]
        sink = GivenEvents()
        await LateEvents(sink, upto).store(small.create.room_id, small.version, events)
        backfilled = [each.backfilled for each in sink.given]
        self.assertEqual(backfilled, [True, True, False, False])
