"""Both sources of news, by their contract; and the bounds of lists."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from synrepl.services.rooms.news.news import ANY_NEWS, NO_NEWS, News
from synrepl.services.rooms.news.news_lists import NewsLists
from synrepl.services.rooms.news.presence_check import PresenceCheck
from synrepl.services.rooms.news.recent_changes import RecentChanges
from tests.services.rooms.news.news_source_contract import A, B, C, NewsSourceContract
from tests.services.rooms.news.news_world import (
    NewsWorld,
    changes_check,
    membership,
    message,
    news_lists,
)


class CachedChanges(NewsSourceContract, SynchronousTestCase):
    """:class:`~synrepl.services.rooms.news.changes_check.ChangesCheck`."""

    def make_world(self) -> NewsWorld:
        return NewsWorld(changes_check)


class ListsOfUsers(NewsSourceContract, SynchronousTestCase):
    """:class:`~synrepl.services.rooms.news.news_lists.NewsLists`."""

    def make_world(self) -> NewsWorld:
        return NewsWorld(news_lists)

    def test_a_user_without_a_list_is_sent_to_the_tables_once(self) -> None:
        world = self.make_world()
        world.happen("events", membership(A, "!1"))
        before = world.now()
        world.happen("events", message("!1"))
        self.assertEqual(world.news(A, before), ANY_NEWS)
        since = world.now()
        world.happen("events", message("!1"))
        self.assertEqual(world.news(A, since), News(frozenset({"!1"})))
        self.assertEqual(world.news(A, before), ANY_NEWS)

    def test_a_full_list_drops_what_is_oldest(self) -> None:
        rooms = [f"!many{number}" for number in range(6)]
        for room in rooms:
            self.world.happen("events", membership(C, room))
        since = [self.asked(C)]
        for room in rooms:
            self.world.happen("events", message(room))
            since.append(self.world.now())
        self.assertEqual(self.world.news(C, since[0]), ANY_NEWS)
        self.assertEqual(self.world.news(C, since[1]), News(frozenset(rooms[1:])))
        self.assertEqual(self.world.news(C, since[-1]), NO_NEWS)

    def test_repeated_changes_of_a_room_take_one_place(self) -> None:
        since = self.asked(A)
        for _ in range(20):
            self.world.happen("events", message("!1"))
        self.assertEqual(self.world.news(A, since), News(frozenset({"!1"})))


class BoundsOfLists(SynchronousTestCase):
    """How many lists there are."""

    def setUp(self) -> None:
        self.world = NewsWorld(
            lambda applied, rooms: NewsLists(
                applied,
                rooms,
                PresenceCheck(RecentChanges(), rooms),
                max_lists=2,
                max_indexed=3,
            )
        )

    def ask(self, user: str) -> None:
        before = self.world.now()
        self.world.happen("events", message("!elsewhere"))
        self.world.news(user, before)

    def count(self) -> int:
        assert isinstance(self.world.source, NewsLists)
        return len(self.world.source)

    def test_the_list_of_the_user_who_asked_longest_ago_goes_first(self) -> None:
        for user in (A, B, A, C):
            self.ask(user)
        self.assertEqual(self.count(), 2)
        since = self.world.now()
        self.world.happen("events", message("!elsewhere"))
        self.assertEqual(self.world.news(A, since), NO_NEWS)
        self.assertEqual(self.world.news(B, since), ANY_NEWS)

    def test_rooms_count_too(self) -> None:
        for user in (A, B):
            for number in range(2):
                self.world.happen("events", membership(user, f"!{number}"))
        self.ask(A)
        self.ask(B)
        self.assertEqual(self.count(), 1)
