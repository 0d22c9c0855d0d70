"""The rooms that users are in, cached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from synrepl.caches.cached import Cached
from synrepl.caches.registry import Caches

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
    :param load: reads the rooms of some users, see :func:`~.rooms_of_user.rooms_of_users`
    :ivar rooms_of: the cached coroutine: from a user ID to a frozenset of room IDs
    :ivar rooms_of_all: the same for several users at once: from their IDs to a map
    """

    def __init__(
        self,
        caches: Caches,
        load: Callable[[Collection[str]], Awaitable[Mapping[str, frozenset[str]]]],
        max_users: int = MAX_USERS,
    ) -> None:
        @caches.cached(
            name=_NAME, max_entries=max_users, max_bytes=MAX_BYTES, size_of=_size_of_rooms
        )
        async def rooms_of(user_id: str) -> frozenset[str]:
            return (await load([user_id]))[user_id]

        @caches.cached_list(rooms_of, many="user_ids")
        async def rooms_of_all(user_ids: Collection[str]) -> Mapping[str, frozenset[str]]:
            return await load(user_ids)

        self.rooms_of = rooms_of
        self.rooms_of_all = rooms_of_all
        assert isinstance(rooms_of, Cached)
        self._cache, _ = rooms_of.cache_of(None)

    def known(self, user_id: str) -> frozenset[str] | None:
        """The rooms of a user if they are cached."""
        entry = self._cache.find((user_id,))
        return None if entry is None else entry.value


def _size_of_rooms(rooms: frozenset[str]) -> int:
    return _SET_BYTES + _ROOM_BYTES * len(rooms)
