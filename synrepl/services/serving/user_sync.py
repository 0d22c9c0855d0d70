"""Who is syncing where, per connection (USER_SYNC, CLEAR_USER_SYNC, connection loss)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from synrepl.wire.commands import ClearUserSync, UserSync

#: More syncing users than this from one connection are not believed.
MAX_USERS = 1_000_000

C = TypeVar("C")

_User = tuple[str, str | None]


class UserSyncs(Generic[C]):
    """Keeps the users that sync through each connection.

    :param ended: told of each user who stopped syncing because an instance was
        cleared or a connection was lost, as the USER_SYNC that did not come
    """

    def __init__(self, ended: Callable[[C, UserSync], object]) -> None:
        self._ended = ended
        self._syncing: dict[C, dict[str | None, dict[_User, int]]] = {}

    def user_sync(self, connection: C, command: UserSync) -> None:
        """Take in a USER_SYNC."""
        instances = self._syncing.setdefault(connection, {})
        users = instances.setdefault(command.instance, {})
        key = (command.user, command.device)
        if not command.syncing:
            users.pop(key, None)
        elif key in users or sum(map(len, instances.values())) < MAX_USERS:
            users[key] = command.last_sync_ms

    def clear(self, connection: C, command: ClearUserSync) -> None:
        """Take in a CLEAR_USER_SYNC: an instance is shutting down."""
        users = self._syncing.get(connection, {}).pop(command.instance, {})
        self._end(connection, command.instance, users)

    def connection_lost(self, connection: C) -> None:
        """Nobody syncs through this connection any more."""
        for instance, users in self._syncing.pop(connection, {}).items():
            self._end(connection, instance, users)

    def syncing(self) -> set[str]:
        """All users that sync anywhere now."""
        return {
            user
            for instances in self._syncing.values()
            for users in instances.values()
            for user, _ in users
        }

    def _end(self, connection: C, instance: str | None, users: dict[_User, int]) -> None:
        for (user, device), last_sync_ms in users.items():
            self._ended(connection, UserSync(instance, user, device, False, last_sync_ms))
