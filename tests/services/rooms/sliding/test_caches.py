"""What processes keep of connections and of lists of rooms, and how much."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.sliding.connection_state import ConnectionState
from synrepl.services.rooms.sliding.connections import MAX_MEMBERS, SlidingConnections, ToldMembers
from synrepl.services.rooms.sliding.room_lists import ListedRoom, RoomListCache, UserRooms
from synrepl.storage.clients.sliding_positions import ConnectionName
from synrepl.storage.rooms.timelines.user_rooms import UserRoom
from tests.services.rooms.sliding.test_connections import ConnectionsCase
from tests.services.world import NullLog


def rooms(count: int, upto: int = 1) -> UserRooms:
    """A list of rooms."""
    found = [
        ListedRoom(
            UserRoom(n, f"!{n}", "10", 0, "join", 1, 1, True, 1, 1, 0, 0, False, False, 0), 1, False
        )
        for n in range(count)
    ]
    return UserRooms(PositionVector(linear=upto), tuple(found), frozenset(range(count)))


class Lists(SynchronousTestCase):
    """Lists of users."""

    def test_those_not_used_for_longest_are_dropped(self) -> None:
        cache = RoomListCache(10)
        cache.keep("a", rooms(4))
        cache.keep("b", rooms(4))
        self.assertIsNotNone(cache.find("a"))
        cache.keep("c", rooms(4))
        self.assertEqual([cache.find(each) is not None for each in "abc"], [True, False, True])
        self.assertEqual(len(cache), 8)
        cache.keep("d", rooms(11))
        self.assertEqual(len(cache), 0)

    def test_an_older_list_does_not_replace_a_newer_one(self) -> None:
        cache = RoomListCache(10)
        cache.keep("a", rooms(2, upto=5))
        cache.keep("a", rooms(3, upto=4))
        found = cache.find("a")
        assert found is not None
        self.assertEqual((len(found.rooms), len(cache)), (2, 2))
        cache.keep("a", rooms(3, upto=5))
        self.assertEqual(len(cache), 3)


class Members(SynchronousTestCase):
    """Membership events that were told."""

    def test_those_of_a_lost_answer_do_not_count(self) -> None:
        members = ToldMembers()
        members.told("s1", "s1", frozenset({1}))
        members.told("s1", "s2", frozenset({2}))
        self.assertEqual(members.at("s1"), {1})
        self.assertEqual(members.at("s2"), {1, 2})
        members.told("s1", "s3", frozenset({3}))
        self.assertEqual((members.at("s3"), members.at("s2")), ({1, 3}, set()))

    def test_there_is_a_number_of_them(self) -> None:
        members = ToldMembers()
        members.told("s1", "s2", frozenset(range(MAX_MEMBERS)))
        members.told("s2", "s3", frozenset({-1}))
        self.assertEqual(members.at("s3"), {-1})
        members.told("s3", "s4", frozenset(range(MAX_MEMBERS + 1)))
        self.assertEqual(members.at("s4"), set())


class Positions(ConnectionsCase):
    """Positions that a process keeps."""

    async def test_they_take_a_bounded_amount_of_memory(self) -> None:
        clock: Any = self.one.process.scheduler
        log: Any = NullLog()
        connections = SlidingConnections(self.database, clock, log, 5_000)
        names = [ConnectionName("@a:x", "D", str(number)) for number in range(10)]
        kept = [await connections.open(each, ConnectionState()) for each in names]
        self.assertLess(len(connections), 5)
        for name, position in zip(names, kept, strict=True):
            found = await connections.find(name, position.key)
            self.assertEqual(found.packed, position.packed)
        connections.note_members(kept[-1], "s1", "s2", range(1_000))
        self.assertEqual(len(connections), 0)
