"""Rejected events are not part of a state, even if another server lists them."""

from __future__ import annotations

from unittest import TestCase

from synrepl.rooms.partial import resync
from synrepl.rooms.room import Room
from synrepl.rooms.send_join_response import IncompleteAnswer
from tests.rooms.auth_rooms import ALICE, BOB, CAROL
from tests.rooms.small_rooms import SmallRoom

LEVELS = ("m.room.power_levels", "")
TOPIC = ("m.room.topic", "")


class RejectedEventsInReportedStates(TestCase):
    """States that another server sent."""

    def setUp(self) -> None:
        self.small = small = SmallRoom()
        content = {"users": {BOB: 100}}
        self.bad = small.event(LEVELS[0], content, [small.rules], [small.create], BOB, "")
        self.base = [small.create, small.alice, small.rules]

    def test_are_left_out_of_the_state_of_a_partial_join(self) -> None:
        bad = self.small.event(TOPIC[0], {}, [self.small.rules], [self.small.create], BOB, "")
        partial, join = self.small.joined(bad)
        self.assertFalse(partial.room[bad.event_id].accepted)
        self.assertNotIn(TOPIC, partial.room.current_state())
        partial.resync(join.event_id, self.small.state(*self.small.base, bad))
        self.assertNotIn(TOPIC, partial.room.current_state())

    def test_a_partial_join_with_rejected_power_levels_is_refused(self) -> None:
        with self.assertRaisesRegex(IncompleteAnswer, f"its {LEVELS[0]} .* is rejected"):
            self.small.joined(self.bad)

    def test_are_left_out_of_the_state_before_an_event(self) -> None:
        room = Room(self.small.version)
        for event in (*self.small.base, self.bad):
            room.receive_outlier(event)
        event = self.small.message(self.small.carol)
        state = self.small.state(*self.base, self.bad)
        room.receive_with_state(event, state)
        self.assertEqual(room.state_before(event.event_id), self.small.state(*self.base))
        judged = room.judge_again(event.event_id, state)
        self.assertEqual(judged.state_before, self.small.state(*self.base))

    def test_provisionally_rejected_events_stay_until_the_resync(self) -> None:
        small = self.small
        partial, join = small.joined(small.carol)
        left = small.member(CAROL, "leave", [join], [small.create, small.carol])
        cites = [small.create, small.levels, small.carol]
        topic = small.event(TOPIC[0], {}, [left], cites, CAROL, "")
        for event in (left, topic):
            (judged,) = partial.receive(event)
        self.assertTrue(judged.partial)
        self.assertEqual(judged.failed, "state_before")
        whole = [*small.base, small.carol]
        # It claims to be older than all, and its state names what is judged again after most.
        late = small.message(small.message(topic), depth=1)
        partial.add_with_state(late, small.state(*whole, topic))
        self.assertEqual(partial.room.state_before(late.event_id)[TOPIC], topic.event_id)
        resync(partial, {join.event_id: small.state(*whole)})
        self.assertFalse(partial.is_partial)
        self.assertFalse(partial.room[topic.event_id].accepted)
        self.assertEqual(partial.room.state_before(late.event_id), small.state(*whole))


class RejectedCreateEvents(TestCase):
    """Version 12, where the room's ID is that of its creation."""

    def test_events_with_a_rejected_create_event_are_rejected(self) -> None:
        small = SmallRoom("12", room_version="99")
        room = Room(small.version)
        for event in small.base:
            (judged,) = room.receive_outlier(event)
            self.assertFalse(judged.accepted)
        self.assertEqual(room[small.alice.event_id].refusal.code, "no-create")  # type: ignore[union-attr]
        join = small.member(ALICE, "join", [small.rules], [small.create, small.rules])
        (judged,) = room.receive_outlier(join)
        self.assertFalse(judged.accepted)
        with self.assertRaisesRegex(IncompleteAnswer, "its m.room.create .* is rejected"):
            small.joined()

    def test_an_accepted_create_event_is_enough(self) -> None:
        small = SmallRoom("12", room_version="12")
        partial, join = small.joined()
        self.assertTrue(partial.room[join.event_id].accepted)
