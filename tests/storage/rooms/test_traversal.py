"""Walks through a room's graph for other servers, and the JSON that they and users get."""

from __future__ import annotations

import json
from collections.abc import Sequence

from synrepl.rooms import Sight, Viewer
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.messages import read_backfill, read_messages
from synrepl.storage.rooms.visibility.event_visibility import ServedEvent
from synrepl.storage.rooms.visibility.pages import BadPageSize, PageRequest
from synrepl.storage.rooms.visibility.traversal import (
    MAX_FROM_EVENTS,
    BadMinDepth,
    TooManyEventsNamed,
    backfill,
    missing_events,
)
from tests.storage.rooms.test_visibility import RoomCase
from tests.storage.rooms.written_rooms import WrittenEvent, WrittenRoom


def message(room: WrittenRoom, *prevs: WrittenEvent, **more: int) -> WrittenEvent:
    """Add a message with a body."""
    event = room.event("m.room.message", {"body": str(len(room.events))})
    return room.add(event, *prevs, **more)


def joined_room() -> tuple[WrittenRoom, WrittenEvent]:
    """A room with history for those who are in it; ``@a:x`` is."""
    room = WrittenRoom()
    join = room.add(room.event("m.room.member", {"membership": "join"}, key="@a:x"))
    visibility = {"history_visibility": "joined"}
    return room, room.add(room.event("m.room.history_visibility", visibility, key=""), join)


def numbers(events: Sequence[ServedEvent]) -> list[int]:
    return [each.event_no for each in events]


class Backfill(RoomCase):
    def test_walks_both_branches_newest_first_and_passes_rejected_events(self) -> None:
        room = WrittenRoom()
        root = message(room)
        left = message(room, root)
        right = message(room, root)
        rejected = message(room, right, flags=2)
        top = message(room, left, rejected)
        other = message(room, root)

        def check(txn: Transaction) -> None:
            found = backfill(txn, room.room_id, "x", [top.event.event_id, "$unknown"], 100)
            expected = [each.number for each in (top, right, left, root)]
            self.assertEqual(numbers(found), expected)
            few = backfill(txn, room.room_id, "x", [top.event.event_id], 2)
            self.assertEqual(numbers(few), expected[:2])
            ids = [top.event.event_id, other.event.event_id]
            both = numbers(backfill(txn, room.room_id, "x", ids, 100))
            self.assertEqual(
                both, [top.number, other.number, right.number, left.number, root.number]
            )

        self.with_room(room, check)

    def test_returns_a_hundred_events_of_a_long_room_at_most(self) -> None:
        room = WrittenRoom()
        last = message(room)
        for _ in range(150):
            last = message(room, last)

        def check(txn: Transaction) -> None:
            found = numbers(backfill(txn, room.room_id, "x", [last.event.event_id], 1_000))
            self.assertEqual(found, list(range(last.number, last.number - 100, -1)))

        self.with_room(room, check)

    def test_a_server_that_was_not_there_gets_the_redacted_form(self) -> None:
        room, last = joined_room()
        said = message(room, last)

        def check(txn: Transaction) -> None:
            for server, bodies in (("x", ["2"]), ("y", [None])):
                served = read_backfill(txn, room.room_id, server, [said.event.event_id], 1)
                found = [json.loads(each)["content"].get("body") for each in served.json]
                self.assertEqual(found, bodies)
            self.assertEqual(served.events[0].verdict.sight, Sight.REDACTED)

        self.with_room(room, check)

    def test_a_walk_passes_a_bounded_number_of_rejected_events(self) -> None:
        room = WrittenRoom()
        root = last = message(room)
        for _ in range(12):
            last = message(room, last, flags=2)
        ids = [last.event.event_id]

        def check(txn: Transaction) -> None:
            self.assertEqual(numbers(backfill(txn, room.room_id, "x", ids, 1)), [])
            self.assertEqual(numbers(backfill(txn, room.room_id, "x", ids, 2)), [root.number])

        self.with_room(room, check)

    def test_refuses_too_many_event_ids(self) -> None:
        room = WrittenRoom()
        message(room)
        ids = [f"${number}" for number in range(MAX_FROM_EVENTS + 1)]

        def check(txn: Transaction) -> None:
            with self.assertRaises(TooManyEventsNamed):
                backfill(txn, room.room_id, "x", ids, 1)
            for earliest, latest in ((ids, []), ([], ids)):
                with self.assertRaises(TooManyEventsNamed):
                    missing_events(txn, room.room_id, "x", earliest, latest)

        self.with_room(room, check)


class MissingEvents(RoomCase):
    def test_has_what_is_between_in_topological_order(self) -> None:
        room = WrittenRoom()
        root = message(room)
        left = message(room, root)
        right = message(room, root)
        join = message(room, left, right)
        top = message(room, join)

        def found(txn: Transaction, earliest: WrittenEvent, limit: int = 10) -> list[int]:
            ids = [earliest.event.event_id], [top.event.event_id]
            return numbers(missing_events(txn, room.room_id, "x", *ids, limit))

        def check(txn: Transaction) -> None:
            between = [left.number, right.number, join.number]
            self.assertEqual(found(txn, root), between)
            self.assertEqual(found(txn, left), [root.number, right.number, join.number])
            self.assertEqual(found(txn, root, 1), [join.number])

        self.with_room(room, check)

    def test_returns_twenty_at_most_and_none_below_the_depth(self) -> None:
        room = WrittenRoom()
        last = message(room)
        for _ in range(40):
            last = message(room, last)
        ids = [last.event.event_id]

        def check(txn: Transaction) -> None:
            found = numbers(missing_events(txn, room.room_id, "x", [], ids, 100))
            self.assertEqual(found, list(range(last.number - 20, last.number)))
            self.assertEqual(missing_events(txn, room.room_id, "x", [], ids, 100, 2), [])
            with self.assertRaises(BadMinDepth):
                missing_events(txn, room.room_id, "x", [], ids, 100, -1)

        self.with_room(room, check)


class MessagesOfARoom(RoomCase):
    def test_a_redacted_event_is_served_in_its_redacted_form(self) -> None:
        room, last = joined_room()
        said = message(room, last)
        said.redacted_by = 1
        message(room, said)

        def check(txn: Transaction) -> None:
            page = read_messages(txn, room.room_id, Viewer("@a:x"), PageRequest(2))
            bodies = [json.loads(each)["content"].get("body") for each in page.json]
            self.assertEqual(bodies, ["3", None])

        self.with_room(room, check)

    def test_names_what_is_missing_in_the_part_that_it_covers(self) -> None:
        room, last = joined_room()
        said = message(room, last)

        def check(txn: Transaction) -> None:
            txn.execute(
                "INSERT INTO synrepl._backward_extremities (room_no, child_no, is_followed, missing_id)"
                " VALUES (1, %s, true, '$missing')",
                (last.number,),
            )
            viewer = Viewer("@a:x")
            newest = read_messages(txn, room.room_id, viewer, PageRequest(1))
            self.assertEqual([each.event_no for each in newest.events], [said.number])
            self.assertEqual(newest.gaps, [])
            older = read_messages(txn, room.room_id, viewer, PageRequest(1, upto=newest.next))
            self.assertEqual(older.gaps, ["$missing"])

        self.with_room(room, check)

    def test_refuses_a_page_of_no_events(self) -> None:
        room, _ = joined_room()

        def check(txn: Transaction) -> None:
            for limit in (0, 1_001):
                with self.assertRaises(BadPageSize):
                    read_messages(txn, room.room_id, Viewer("@a:x"), PageRequest(limit))

        self.with_room(room, check)
