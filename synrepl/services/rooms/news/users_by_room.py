"""An index from rooms to some of the users in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

_NOBODY: frozenset[str] = frozenset()


class UsersByRoom:
    """Which of some users are in a room.

    :ivar indexed: number of entries
    """

    def __init__(self) -> None:
        self._by_room: defaultdict[str, set[str]] = defaultdict(set)
        self._rooms: dict[str, Collection[str]] = {}
        self.indexed = 0

    def add(self, user_id: str, room_ids: Collection[str]) -> None:
        """Add a user, who is not there yet."""
        self._rooms[user_id] = room_ids
        for room_id in room_ids:
            self._by_room[room_id].add(user_id)
        self.indexed += len(room_ids)

    def remove(self, user_id: str) -> None:
        """Remove a user."""
        room_ids = self._rooms.pop(user_id)
        for room_id in room_ids:
            users = self._by_room[room_id]
            users.discard(user_id)
            if not users:
                del self._by_room[room_id]
        self.indexed -= len(room_ids)

    def clear(self) -> None:
        """Remove all users."""
        self._by_room.clear()
        self._rooms.clear()
        self.indexed = 0

    def users_in(self, room_id: str) -> Collection[str]:
        """The users in a room; not to be kept."""
        return self._by_room.get(room_id, _NOBODY)
