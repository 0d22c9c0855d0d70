"""Whether anything is new, decided without a query."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.news import NO_NEWS, News
from synrepl.services.rooms.news.recent_changes import ChangeKind, RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.sync_token import SyncToken, server_tag
from synrepl.storage.rooms.reading.rooms_of_user import RoomsOfUser

ROOMS = {"@a:x": {"!1"}, "@b:x": {"!1", "!2"}, "@c:x": {"!2"}, "@d:x": {"!3"}}


class Checking(SynchronousTestCase):
    """Users in rooms."""

    def setUp(self) -> None:
        self.loads: list[list[str]] = []
        self.recent = RecentChanges()
        self.check = ChangesCheck(self.recent, RoomsOfUsers(make_caches(), self.load))
        for stream in ("receipts", "presence", "account_data"):
            self.recent.begin(stream, "w", 0)

    async def load(self, users: Collection[str]) -> Mapping[str, RoomsOfUser]:
        self.loads.append(sorted(users))
        return {each: RoomsOfUser(frozenset(ROOMS.get(each, ()))) for each in users}

    def news(self, user_id: str, stream: str, since: int, upto: int) -> News:
        """What may be new of a stream."""
        tag = server_tag("x")
        vectors = [
            SyncToken.of(tag, {stream: PositionVector(linear=token)}) for token in (since, upto)
        ]
        found: Any = self.successResultOf(
            Deferred.fromCoroutine(self.check.news_for(user_id, *vectors))
        )
        assert isinstance(found, News)
        return found

    def test_presence_is_news_for_those_who_share_a_room(self) -> None:
        for token, user_id in enumerate(("@c:x", "@d:x"), 1):
            self.check.changed(ChangeKind.PRESENCE, "w", token, user_id)
        self.assertEqual(self.news("@b:x", "presence", 0, 2), News(presence=True))
        self.assertEqual(self.news("@d:x", "presence", 0, 2), News(presence=True))
        for _ in range(3):
            self.assertEqual(self.news("@a:x", "presence", 0, 2), NO_NEWS)
        self.assertEqual(self.news("@b:x", "presence", 1, 2), NO_NEWS)
        # The rooms of all whose presence changed were read at once, and once.
        self.assertEqual(self.loads, [["@b:x"], ["@c:x", "@d:x"], ["@a:x"]])

    def test_presence_of_many_may_be_news_for_anybody(self) -> None:
        for token in range(1, 600):
            self.check.changed(ChangeKind.PRESENCE, "w", token, f"@u{token}:x")
        self.assertEqual(self.news("@a:x", "presence", 0, 599), News(presence=True))

    def test_a_private_receipt_is_news_for_its_user(self) -> None:
        self.check.changed(ChangeKind.PRIVATE_RECEIPTS, "w", 1, "@a:x")
        self.assertEqual(self.news("@a:x", "receipts", 0, 1), News(private_receipts=True))
        self.assertEqual(self.news("@b:x", "receipts", 0, 1), NO_NEWS)

    def test_account_data_is_news_for_its_user(self) -> None:
        self.check.changed(ChangeKind.ACCOUNT_DATA, "w", 1, "@a:x")
        self.assertEqual(self.news("@a:x", "account_data", 0, 1), News(account_data=True))
        self.assertEqual(self.news("@b:x", "account_data", 0, 1), NO_NEWS)
