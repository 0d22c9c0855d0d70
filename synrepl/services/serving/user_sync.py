"""Tracks syncing users per connection (USER_SYNC, CLEAR_USER_SYNC, lost connections)."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

from synrepl.core.backlog import UNLIMITED, Capacity
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused
from synrepl.core.slices import Slices
from synrepl.wire.commands import ClearUserSync, UserSync

#: Maximum number of syncing users, of all connections and of one.
MAX_USERS = 1_000_000
MAX_USERS_OF_CONNECTION = 400_000

#: Maximum number of instance names per connection. A real worker uses one.
MAX_INSTANCES_OF_CONNECTION = 1_000

#: Maximum length of user and device together, in characters. Matrix user IDs have up to 255 bytes.
LONGEST_USER = 512

#: Stands for an instance without a name: the legacy dialect names none.
UNNAMED = "(unnamed)"

#: Maximum number of instances in a status, and of those that are ranked for it.
MAX_SHOWN = 20
MAX_RANKED = 1_000

#: Users that are forgotten per step.
_AT_ONCE = 100

#: Users of an instance that are forgotten before their end is reported, and the cost of that. So
#: the report agrees with the state, unless the instance has very many users.
_NOW = 500
_COST_NOW = 1 + _NOW // _AT_ONCE

C = TypeVar("C")

#: A user, and the device if the dialect has it, as one string. The garbage collector does not
#: traverse dictionaries that hold only strings and numbers.
_User = str


class TooManySyncingUsers(Refused):
    """{limit} users sync through {whose}; USER_SYNC of further ones is ignored"""


class TooManyInstances(Refused):
    """this connection speaks for {limit} instances; USER_SYNC of further ones is ignored: every worker needs a connection of its own"""


class UserTooLong(Refused):
    """USER_SYNC of a user whose name and device have {length} characters is ignored: at most {limit} are accepted"""


class _Syncing:
    """The users that sync through one connection, by instance."""

    def __init__(self) -> None:
        self.count = 0
        self.instances: dict[str | None, dict[_User, int]] = {}


class UserSyncs(Generic[C]):
    """Tracks the users that sync through each connection.

    When an instance with very many users stops, they are forgotten in slices, and count
    until then.

    :param name: returns the name of a connection
    :param ended: called with (name of the connection, command) for users that stopped
        syncing because their connection was lost. The command is one CLEAR_USER_SYNC per
        instance. It is a USER_SYNC per user for legacy clients, which name no instance,
        and for an instance that has another connection by then.
    :param capacity: back-pressure of ``ended``
    """

    def __init__(
        self,
        scheduler: Scheduler,
        slices: Slices,
        name: Callable[[C], str],
        ended: Callable[[str, ClearUserSync | UserSync], object],
        capacity: Capacity = UNLIMITED,
    ) -> None:
        self._scheduler = scheduler
        self._slices = slices
        self._name = name
        self._ended = ended
        self._capacity = capacity
        self._syncing: dict[C, _Syncing] = {}
        #: Connections that speak for each instance.
        self._holders: dict[str | None, dict[C, None]] = {}
        self._count = 0
        #: Number of entries by user, and by instance.
        self._by_user: dict[str, int] = {}
        self._by_instance: dict[str | None, int] = {}

    @property
    def count(self) -> int:
        """Number of users (with devices: of users and devices) of all instances."""
        return self._count

    def is_syncing(self, user: str) -> bool:
        """Whether a user syncs through any instance."""
        return user in self._by_user

    def users(self) -> set[str]:
        """All syncing users, as a copy, which takes a while with very many users."""
        return set(self._by_user)

    def by_instance(self) -> dict[str, set[str]]:
        """The users by instance, as a copy; :data:`UNNAMED` for an instance without a name."""
        found: dict[str, set[str]] = {}
        for of_connection in self._syncing.values():
            for instance, users in of_connection.instances.items():
                of_instance = found.setdefault(UNNAMED if instance is None else instance, set())
                of_instance.update(key.partition(" ")[0] for key in users)
        return found

    def counts(self, most: int = MAX_SHOWN) -> dict[str, int]:
        """The number of users of the largest instances, by instance.

        Only the first :data:`MAX_RANKED` instances are compared, which bounds the time it takes.
        """
        looked_at = islice(self._by_instance.items(), MAX_RANKED)
        largest = nlargest(most, looked_at, key=itemgetter(1))
        return {UNNAMED if name is None else name: count for name, count in largest}

    @property
    def instances(self) -> int:
        """Number of instances that users sync through."""
        return len(self._by_instance)

    def user_sync(self, connection: C, command: UserSync) -> None:
        """Handle a USER_SYNC.

        :raises TooManySyncingUsers: :raises TooManyInstances: :raises UserTooLong: it is ignored
        """
        of_connection = self._syncing.get(connection)
        if of_connection is None:
            of_connection = self._syncing[connection] = _Syncing()
        users = of_connection.instances.get(command.instance)
        key = command.user if command.device is None else f"{command.user} {command.device}"
        if not command.syncing:
            if users is not None and users.pop(key, None) is not None:
                of_connection.count -= 1
                self._forget_one(key)
                self._less(command.instance, 1)
                if not users:
                    self._drop(connection, of_connection, command.instance)
            return
        if users is None or key not in users:
            self._check(of_connection, command.instance, key)
            if users is None:
                users = of_connection.instances[command.instance] = {}
                self._holders.setdefault(command.instance, {})[connection] = None
            of_connection.count += 1
            self._count += 1
            user = key.partition(" ")[0]
            self._by_user[user] = self._by_user.get(user, 0) + 1
            self._by_instance[command.instance] = self._by_instance.get(command.instance, 0) + 1
        users[key] = command.last_sync_ms

    def clear(self, connection: C, command: ClearUserSync) -> None:
        """Handle a CLEAR_USER_SYNC: an instance is shutting down."""
        of_connection = self._syncing.get(connection)
        users = None if of_connection is None else of_connection.instances.get(command.instance)
        if of_connection is not None and users is not None:
            of_connection.count -= len(users)
            self._less(command.instance, len(users))
            self._drop(connection, of_connection, command.instance)
            self._forget_some(users, _NOW)
            self._scheduler.spawn("forget syncing users", self._forget(users))

    def connection_lost(self, connection: C) -> None:
        """No user syncs through this connection any more."""
        of_connection = self._syncing.pop(connection, None)
        if of_connection is not None:
            for instance, users in of_connection.instances.items():
                self._less(instance, len(users))
                self._let_go(connection, instance)
            ending = self._end(self._name(connection), of_connection)
            self._scheduler.spawn("end syncing users", ending)

    async def repeat(self, skip: C, send: Callable[[str, UserSync], object]) -> None:
        """Repeat a USER_SYNC for each user that syncs now, in slices.

        :param skip: the connection whose users are left out
        :param send: called with (name of the connection, command)
        """
        for connection, of_connection in list(self._syncing.items()):
            if connection is skip:
                continue
            for instance, users in list(of_connection.instances.items()):
                for key in list(users):
                    await self._capacity.room()
                    await self._slices.step()
                    last_sync_ms = users.get(key)
                    if last_sync_ms is not None:
                        user, _, device = key.partition(" ")
                        start = UserSync(instance, user, device or None, True, last_sync_ms)
                        send(self._name(connection), start)

    def _check(self, of_connection: _Syncing, instance: str | None, key: _User) -> None:
        """Check the limits before adding a user.

        :raises Refused: a limit has been reached
        """
        if len(key) > LONGEST_USER:
            raise UserTooLong(length=len(key), limit=LONGEST_USER)
        if of_connection.count >= MAX_USERS_OF_CONNECTION:
            raise TooManySyncingUsers(limit=MAX_USERS_OF_CONNECTION, whose="this connection")
        if self._count >= MAX_USERS:
            raise TooManySyncingUsers(limit=MAX_USERS, whose="all connections together")
        instances = of_connection.instances
        if len(instances) >= MAX_INSTANCES_OF_CONNECTION and instance not in instances:
            raise TooManyInstances(limit=MAX_INSTANCES_OF_CONNECTION)

    def _drop(self, connection: C, of_connection: _Syncing, instance: str | None) -> None:
        del of_connection.instances[instance]
        self._let_go(connection, instance)

    def _let_go(self, connection: C, instance: str | None) -> None:
        holders = self._holders[instance]
        del holders[connection]
        if not holders:
            del self._holders[instance]

    async def _end(self, name: str, of_connection: _Syncing) -> None:
        """Report the users of a lost connection as ended and forget them, in slices."""
        instances = of_connection.instances
        while instances:
            await self._capacity.room()
            await self._slices.step(_COST_NOW)
            instance, users = instances.popitem()
            if instance is None or instance in self._holders:
                await self._end_each(name, instance, users)
            else:
                self._forget_some(users, _NOW)
                self._ended(name, ClearUserSync(instance))
                await self._forget(users)

    async def _end_each(self, name: str, instance: str | None, users: dict[_User, int]) -> None:
        while users:
            await self._capacity.room()
            await self._slices.step()
            key, last_sync_ms = users.popitem()
            self._forget_one(key)
            if not self._syncs_elsewhere(instance, key):
                user, _, device = key.partition(" ")
                end = UserSync(instance, user, device or None, False, last_sync_ms)
                self._ended(name, end)

    def _syncs_elsewhere(self, instance: str | None, key: _User) -> bool:
        """Whether the user syncs through another connection, such as that of a restarted worker."""
        others = self._holders.get(instance, ())
        return any(key in self._syncing[other].instances[instance] for other in others)

    async def _forget(self, users: dict[_User, int]) -> None:
        """Free the memory in slices; freeing 300,000 users at once takes tens of milliseconds."""
        while users:
            await self._slices.step()
            self._forget_some(users, _AT_ONCE)

    def _forget_some(self, users: dict[_User, int], most: int) -> None:
        for _ in range(min(most, len(users))):
            key, _ = users.popitem()
            self._forget_one(key)

    def _forget_one(self, key: _User) -> None:
        self._count -= 1
        user = key.partition(" ")[0]
        left = self._by_user[user] - 1
        if left:
            self._by_user[user] = left
        else:
            del self._by_user[user]

    def _less(self, instance: str | None, how_many: int) -> None:
        left = self._by_instance[instance] - how_many
        if left:
            self._by_instance[instance] = left
        else:
            del self._by_instance[instance]
