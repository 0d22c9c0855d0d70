"""Decides from recent changes whether anything is new for a user.

Source: seed "Room event storage", "Streaming events": the rooms a user is in, the last change of each room, and
the last change of a user's memberships decide whether the tables are asked at all.
"""

from __future__ import annotations

from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.news import NO_NEWS, News
from synrepl.services.rooms.news.presence_check import PresenceCheck
from synrepl.services.rooms.news.recent_changes import ChangeKind, RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers
from synrepl.services.rooms.news.sync_token import SyncToken

_NONE: frozenset[str] | None = frozenset()


class ChangesCheck:
    """A :class:`.NewsSource` that remembers the last change of each room and user.

    Nothing is kept for users who ask, and a change costs the same however many users it concerns.
    """

    def __init__(self, recent: RecentChanges, rooms: RoomsOfUsers) -> None:
        self._recent = recent
        self._rooms = rooms
        self._presence = PresenceCheck(recent, rooms)

    def changed(self, kind: ChangeKind, writer: str, token: Token, entity: str | None) -> None:
        """Remember a change."""
        self._recent.changed(kind, writer, token, entity)

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Remember from where on changes are known."""
        self._recent.begin(stream, writer, token)

    async def news_for(self, user_id: str, since: SyncToken, upto: SyncToken) -> News:
        """What may be new for a user; see :meth:`.NewsSource.news_for`."""
        if since == upto:
            return NO_NEWS
        changed = self._recent.any_since
        rooms = receipts = typing = _NONE
        is_moving = False
        if since.events != upto.events and changed(ChangeKind.ROOM, since.events):
            mine = await self._rooms.memberships_of(user_id)
            rooms = self._recent.changed_among(ChangeKind.ROOM, mine.rooms, since.events)
            if rooms and mine.moving:
                is_moving = mine.is_moving(rooms, upto.events)
                rooms = mine.joined_among(rooms, upto.events)
        # After the rooms, so that these are right if it says no.
        membership = is_moving or self._has_changed(
            ChangeKind.MEMBERSHIP, user_id, since.events, upto.events
        )
        if since.receipts != upto.receipts and changed(ChangeKind.RECEIPTS, since.receipts):
            receipts = await self._changed_rooms(ChangeKind.RECEIPTS, user_id, since.receipts)
        if since.typing != upto.typing and changed(ChangeKind.TYPING, since.typing):
            typing = await self._changed_rooms(ChangeKind.TYPING, user_id, since.typing)
        return News(
            rooms,
            membership,
            receipts,
            typing,
            self._has_changed(
                ChangeKind.ACCOUNT_DATA, user_id, since.account_data, upto.account_data
            ),
            await self._presence.has_changed(user_id, since.presence, upto.presence),
            self._has_changed(ChangeKind.TO_DEVICE, user_id, since.to_device, upto.to_device),
            self._has_changed(ChangeKind.PRIVATE_RECEIPTS, user_id, since.receipts, upto.receipts),
        )

    def _has_changed(
        self, kind: ChangeKind, user_id: str, since: PositionVector, upto: PositionVector
    ) -> bool:
        return since != upto and self._recent.may_have_changed(kind, user_id, since)

    async def _changed_rooms(
        self, kind: ChangeKind, user_id: str, since: PositionVector
    ) -> frozenset[str] | None:
        rooms = await self._rooms.rooms_of(user_id)
        return self._recent.changed_among(kind, rooms, since)
