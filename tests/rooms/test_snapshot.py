"""Rooms as data: what is loaded goes on like the room that it was taken of, without judging anything again."""

from __future__ import annotations

from unittest import TestCase, mock

import msgspec

from synrepl.rooms import judging
from synrepl.rooms.chains import MissingAuthEvent
from synrepl.rooms.judged import Judged
from synrepl.rooms.room import Room
from synrepl.rooms.snapshot import RoomSnapshot, load_room, snapshot_of
from synrepl.rooms.state_groups import UnknownStateGroup
from synrepl.rooms.versions import UnknownRoomVersion
from tests.rooms.dags import dag, dag_names
from tests.rooms.small_rooms import SmallRoom


def through_bytes(snapshot: RoomSnapshot) -> RoomSnapshot:
    """As it comes back from where it was stored."""
    return msgspec.json.decode(msgspec.json.encode(snapshot), type=RoomSnapshot)


def summary(judged: Judged) -> tuple[object, ...]:
    """All of a verdict that can be compared."""
    return (
        judged.event.event_id,
        judged.refusal,
        judged.failed,
        judged.soft_failure,
        judged.partial,
        judged.ordering,
        judged.state_before,
        judged.state_after,
    )


class SnapshotsOfWholeRooms(TestCase):
    """Snapshots of everything."""

    def test_a_loaded_room_continues_like_the_original(self) -> None:
        for name in dag_names(130):
            room_dag = dag(name)
            events, room = room_dag.events, Room(room_dag.version)
            cut = len(events) * 2 // 3
            for event in events[:cut]:
                room.receive(event)
            room.receive(events[-1])  # waits
            snapshot = through_bytes(snapshot_of(room))
            with mock.patch.object(judging, "lookup_judged", side_effect=AssertionError):
                loaded = load_room(snapshot)
            with self.subTest(name):
                for event in events[cut:-1]:
                    self.assertEqual(
                        [summary(each) for each in loaded.receive(event)],
                        [summary(each) for each in room.receive(event)],
                    )
                self.assertEqual(
                    [summary(each) for each in loaded], [summary(each) for each in room]
                )
                self.assertEqual(loaded.current_state(), room.current_state())
                self.assertEqual(loaded.forward_extremities, room.forward_extremities)
                self.assertEqual(list(loaded.waiting), list(room.waiting))

    def test_states_are_stored_as_deltas(self) -> None:
        room_dag = dag("dags/v10_mixed_120.jsonl.gz")
        room = Room(room_dag.version)
        for event in room_dag.events:
            room.receive(event)
        snapshot = snapshot_of(room)
        entries = sum(len(row.entries) + len(row.removed) for row in snapshot.groups)
        self.assertLess(entries, sum(len(each.state_after or ()) for each in room) / 5)


class SnapshotsOfNewestEvents(TestCase):
    """Snapshots of the ends of a room."""

    def test_the_next_events_are_judged_as_in_the_whole_room(self) -> None:
        compared = 0
        for name in dag_names(130):
            room_dag = dag(name)
            events, room = room_dag.events, Room(room_dag.version)
            cut = len(events) // 2
            for event in events[:cut]:
                room.receive(event)
            loaded = load_room(through_bytes(snapshot_of(room, room.forward_extremities)))
            with self.subTest(name):
                self.assertLessEqual(len(loaded), len(room))
                self.assertEqual(loaded.count_with_state, len(room.forward_extremities))
                self.assertEqual(loaded.current_state(), room.current_state())
                for event in events[cut:]:
                    expected = room.receive(event)
                    ours = loaded.receive(event, live=False)
                    for each in ours:
                        original = room[each.event.event_id]
                        self.assertEqual(each.refusal, original.refusal)
                        self.assertEqual(each.state_before, original.state_before)
                        compared += 1
                    self.assertEqual(len(expected), 1)
        self.assertGreater(compared, 500)

    def test_events_outside_are_unknown(self) -> None:
        small = SmallRoom()
        room = Room(small.version)
        for event in (*small.base, small.carol):
            room.receive(event)
        loaded = load_room(snapshot_of(room, [small.carol.event_id]))
        self.assertEqual(len(loaded), 5)
        self.assertEqual(loaded.receive(small.message(small.rules)), [])
        self.assertEqual(loaded.missing, {small.rules.event_id})
        self.assertEqual(len(loaded.receive(small.message(small.carol))), 1)


class BrokenSnapshots(TestCase):
    """What is wrong is named."""

    def setUp(self) -> None:
        small = SmallRoom()
        room = Room(small.version)
        for event in small.base:
            room.receive(event)
        self.snapshot = snapshot_of(room)

    def test_a_missing_auth_event_is_named(self) -> None:
        bad = msgspec.structs.replace(self.snapshot, events=self.snapshot.events[1:])
        with self.assertRaises(MissingAuthEvent):
            load_room(bad)

    def test_a_missing_state_group_is_named(self) -> None:
        bad = msgspec.structs.replace(self.snapshot, groups=self.snapshot.groups[:1])
        with self.assertRaises(UnknownStateGroup):
            load_room(bad)

    def test_an_unknown_room_version_is_named(self) -> None:
        with self.assertRaises(UnknownRoomVersion):
            load_room(msgspec.structs.replace(self.snapshot, version="99"))
