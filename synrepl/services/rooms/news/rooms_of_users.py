"""The rooms that users are in, cached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from synrepl.caches.cached import Cached
from synrepl.caches.registry import Caches
from synrepl.storage.rooms.reading.rooms_of_user import RoomsOfUser

#: Users whose rooms are remembered, and the memory that they may take, in bytes.
MAX_USERS = 50_000
MAX_BYTES = 200 * 2**20

#: A room in a set takes between 24 and 96 bytes; its ID is there once for all users.
_ROOM_BYTES, _SET_BYTES = 60, 300

#: The name that rows of ``events`` and ``caches`` invalidate.
_NAME = "get_rooms_for_user"


class RoomsOfUsers:
    """The rooms of each user, loaded once until a membership of the user changes.

    :param caches: the caches of this process
    :param load: reads the rooms of some users, see :class:`.RoomsReader`
    :ivar memberships_of: the cached coroutine: from a user ID to the rooms
    :ivar memberships_of_all: the same for several users at once: from their IDs to a map
    """

    def __init__(
        self,
        caches: Caches,
        load: Callable[[Collection[str]], Awaitable[Mapping[str, RoomsOfUser]]],
        max_users: int = MAX_USERS,
    ) -> None:
        @caches.cached(
            name=_NAME, max_entries=max_users, max_bytes=MAX_BYTES, size_of=_size_of_rooms
        )
        async def memberships_of(user_id: str) -> RoomsOfUser:
            return (await load([user_id]))[user_id]

        @caches.cached_list(memberships_of, many="user_ids")
        async def memberships_of_all(user_ids: Collection[str]) -> Mapping[str, RoomsOfUser]:
            return await load(user_ids)

        self.memberships_of = memberships_of
        self.memberships_of_all = memberships_of_all
        assert isinstance(memberships_of, Cached)
        self._cache, _ = memberships_of.cache_of(None)

    async def rooms_of(self, user_id: str) -> frozenset[str]:
        """The IDs of the rooms of a user."""
        found: RoomsOfUser = await self.memberships_of(user_id)
        return found.rooms

    def known(self, user_id: str) -> frozenset[str] | None:
        """The rooms of a user if they are cached."""
        entry = self._cache.find((user_id,))
        return None if entry is None else entry.value.rooms


def _size_of_rooms(found: RoomsOfUser) -> int:
    return _SET_BYTES + _ROOM_BYTES * len(found.rooms)
