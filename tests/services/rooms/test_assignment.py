"""Rooms are assigned to instances: equally, in every process alike, and few move."""

from __future__ import annotations

from collections import Counter
from unittest import TestCase

from synrepl.services.rooms.assignment import OtherRoomWriter, RoomAssignment

ROOMS = [f"!{number}:a.example" for number in range(3_000)]


class Assignments(TestCase):
    """Which instance persists which room."""

    def test_every_process_agrees_whatever_the_order_of_the_list(self) -> None:
        one = RoomAssignment(["a", "b", "c"])
        two = RoomAssignment(["c", "a", "b"])
        self.assertEqual(*([each.writer_of(room) for room in ROOMS] for each in (one, two)))

    def test_it_is_the_same_in_every_release(self) -> None:
        assignment = RoomAssignment(["a", "b", "c"])
        found = [assignment.writer_of(room) for room in ROOMS[:8]]
        self.assertEqual(found, ["c", "b", "b", "b", "c", "c", "a", "a"])

    def test_each_instance_has_its_share(self) -> None:
        assignment = RoomAssignment(["a", "b", "c"])
        counts = Counter(map(assignment.writer_of, ROOMS))
        for writer in "abc":
            self.assertAlmostEqual(counts[writer], 1_000, delta=120)

    def test_only_the_rooms_of_an_instance_that_is_removed_move(self) -> None:
        before, after = RoomAssignment(["a", "b", "c"]), RoomAssignment(["a", "c"])
        for room in ROOMS:
            if before.writer_of(room) != "b":
                self.assertEqual(before.writer_of(room), after.writer_of(room))

    def test_a_room_that_was_moved_is_where_it_was_moved_to(self) -> None:
        room = ROOMS[0]
        self.assertEqual(RoomAssignment(["a", "b", "c"]).writer_of(room), "c")
        moved = RoomAssignment(["a", "b", "c"], {room: "a"})
        self.assertEqual(moved.writer_of(room), "a")
        self.assertEqual(moved.writer_of(ROOMS[1]), "b")

    def test_a_move_to_an_instance_that_is_removed_does_not_count(self) -> None:
        room = ROOMS[0]
        self.assertEqual(RoomAssignment(["b", "c"], {room: "a"}).writer_of(room), "c")

    def test_a_room_of_another_instance_is_refused_by_its_name(self) -> None:
        assignment = RoomAssignment(["a", "b"])
        own = next(room for room in ROOMS if assignment.writer_of(room) == "a")
        other = next(room for room in ROOMS if assignment.writer_of(room) == "b")
        assignment.check(own, "a")
        with self.assertRaisesRegex(OtherRoomWriter, f"room {other} is assigned to 'b'"):
            assignment.check(other, "a")
