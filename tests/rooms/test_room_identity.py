"""Which room a room is, and which event an ID names."""

from __future__ import annotations

from unittest import TestCase, mock

from synrepl.rooms.event import event_of
from synrepl.rooms.judged import OtherRoom, UnknownEvents
from synrepl.rooms.resolution_lookups import ResolutionCache
from synrepl.rooms.room import Room
from synrepl.rooms.versions import V10
from synrepl.rooms.waiting import WaitingEvent, WaitingEvents
from tests.rooms.auth_rooms import CAROL
from tests.rooms.small_rooms import SmallRoom


class EventsReceivedTwice(TestCase):
    """Two events of one ID, where servers make up IDs: the first that came is kept."""

    def setUp(self) -> None:
        self.small = small = SmallRoom("1")
        self.room = Room(small.version)
        for event in (small.create, small.alice):
            self.room.receive(event)
        cites = [small.create, small.alice]
        self.first = small.message(small.alice, event_id="$twice:a")
        self.other = small.event(
            "m.room.power_levels", {}, [small.alice], cites, key="", event_id="$twice:a"
        )

    def test_an_outlier_is_received_again(self) -> None:
        self.room.receive_outlier(self.first)
        (judged,) = self.room.receive(self.other)
        self.assertIs(judged.event, self.first)
        self.assertNotIn(("m.room.power_levels", ""), self.room.current_state())

    def test_an_outlier_is_received_again_with_its_state(self) -> None:
        self.room.receive_outlier(self.first)
        state = self.small.state(self.small.create, self.small.alice)
        (judged,) = self.room.receive_with_state(self.other, state)
        self.assertIs(judged.event, self.first)

    def test_a_waiting_event_becomes_an_outlier(self) -> None:
        small = self.small
        waits = small.message(small.rules, event_id="$twice:a")
        self.assertEqual(self.room.receive(waits), [])
        (judged,) = self.room.receive_outlier(self.other)
        self.assertIs(judged.event, waits)
        self.room.receive(small.levels)
        self.assertIs(self.room.receive(small.rules)[-1].event, waits)


class EventsOfOtherRooms(TestCase):
    """The first event says which room it is, if it is taken in."""

    def test_refuses_an_event_of_another_version(self) -> None:
        evil = SmallRoom("11")
        small = SmallRoom("10")
        room = Room(small.version)
        for take_in in (room.receive, room.receive_outlier):
            self.assertRaises(OtherRoom, take_in, evil.create)
            self.assertIsNone(room.room_id)
        room.receive(small.create)
        self.assertEqual(room.room_id, small.create.room_id)

    def test_a_refused_event_leaves_no_trace(self) -> None:
        small = SmallRoom("10")
        room = Room(small.version)
        elsewhere = event_of(small.alice.fields | {"room_id": "!evil:x"}, V10)
        self.assertRaises(UnknownEvents, room.receive_outlier, elsewhere)
        self.assertRaises(UnknownEvents, room.receive_with_state, elsewhere, {})
        self.assertIsNone(room.room_id)
        room.receive(small.alice)
        self.assertEqual(room.room_id, small.alice.room_id)
        self.assertRaises(OtherRoom, room.receive, elsewhere)


class OutliersJudgedAgain(TestCase):
    """Their verdict may change when they come again."""

    def test_cached_resolutions_are_dropped_when_the_verdict_changes(self) -> None:
        small = SmallRoom()
        left = small.member(CAROL, "leave", [small.carol], [small.create, small.carol])
        cites = [small.create, small.levels, small.carol]
        late = small.event("m.room.topic", {}, [left], cites, CAROL, "")
        room = Room(small.version)
        for event in (*small.base, small.carol, left):
            room.receive(event)
        (outlier,) = room.receive_outlier(late)
        self.assertTrue(outlier.accepted)
        with mock.patch.object(ResolutionCache, "clear") as clear:
            (judged,) = room.receive(late)
            self.assertFalse(judged.accepted)
            clear.assert_called_once_with()

    def test_cached_resolutions_stay_when_the_verdict_is_the_same(self) -> None:
        small = SmallRoom()
        room = Room(small.version)
        room.receive_outlier(small.create)
        with mock.patch.object(ResolutionCache, "clear") as clear:
            room.receive(small.create)
            clear.assert_not_called()


class WaitingEventLimits(TestCase):
    """What waits is bounded in number and in bytes."""

    def test_waiting_events_are_limited_in_bytes(self) -> None:
        small = SmallRoom()
        events = [small.message(small.carol) for _ in range(6)]
        most = sum(len(event.raw) for event in events[3:])
        waiting = WaitingEvents(100, max_bytes=most)
        for event in events:
            waiting.hold(WaitingEvent(event, True, {small.carol.event_id}))
        self.assertEqual(list(waiting.event_ids), [event.event_id for event in events[3:]])
        self.assertEqual(waiting.get(events[3].event_id), events[3])
        self.assertIsNone(waiting.get(events[0].event_id))
        self.assertEqual(len(waiting.arrived(small.carol.event_id, True)), 3)
        for event in events[:3]:
            waiting.hold(WaitingEvent(event, True, {small.carol.event_id}))
        self.assertEqual(len(waiting), 3)

    def test_an_event_larger_than_the_limit_is_dropped(self) -> None:
        small = SmallRoom()
        waiting = WaitingEvents(100, max_bytes=10)
        waiting.hold(WaitingEvent(small.alice, True, {small.create.event_id}))
        self.assertEqual((len(waiting), waiting.missing), (0, set()))
