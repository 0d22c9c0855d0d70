"""Decides whether the presence of anybody has changed who shares a room with a user."""

from __future__ import annotations

from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.recent_changes import ChangeKind, RecentChanges
from synrepl.services.rooms.news.rooms_of_users import RoomsOfUsers

#: Users whose presence has changed that are compared with a user's rooms; of more, some may share one.
MAX_PRESENCE = 500


class PresenceCheck:
    """Compares the users whose presence has changed with the rooms of the one who asks.

    :param recent: the changes of presence
    """

    def __init__(self, recent: RecentChanges, rooms: RoomsOfUsers) -> None:
        self._recent = recent
        self._rooms = rooms

    def changed(self, writer: str, token: Token, user_id: str | None) -> None:
        """Remember that the presence of a user has changed, or of any user."""
        self._recent.changed(ChangeKind.PRESENCE, writer, token, user_id)

    def unknown_upto(self, writer: str, token: Token) -> None:
        """Remember from where on changes are known."""
        self._recent.begin(ChangeKind.PRESENCE.stream, writer, token)

    async def has_changed(self, user_id: str, since: PositionVector, upto: PositionVector) -> bool:
        """Whether the presence of the user has changed, or may have of somebody in the same room.

        :raises SynreplError: rooms of users are not cached, and cannot be read now
        """
        if since == upto or not self._recent.any_since(ChangeKind.PRESENCE, since):
            return False
        users = self._recent.all_since(ChangeKind.PRESENCE, since, MAX_PRESENCE)
        if users is None or user_id in users:
            return True
        rooms = await self._rooms.rooms_of(user_id)
        known = {other: self._rooms.known(other) for other in users}
        if any(theirs is not None and not rooms.isdisjoint(theirs) for theirs in known.values()):
            return True
        # Read once for all who ask: otherwise everybody would have to look what concerns nobody.
        unknown = [other for other, theirs in known.items() if theirs is None]
        if not unknown:
            return False
        found = await self._rooms.memberships_of_all(unknown)
        return any(not rooms.isdisjoint(theirs.rooms) for theirs in found.values())
