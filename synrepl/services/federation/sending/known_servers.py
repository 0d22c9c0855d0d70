"""The servers that are in rooms now, as far as this server knows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Protocol

from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.device_list_changes import rooms_of
from synrepl.storage.federation.room_servers import (
    ServersAtState,
    current_groups,
    current_servers,
    servers_at,
)
from synrepl.storage.rooms.tables.partial_rooms import partial_rooms_among, servers_at_join

#: Servers, in all rooms, that are kept.
MAX_SERVERS = 500_000


class ServersOfRoom(Protocol):
    """Knows the servers in rooms."""

    async def servers(self, room_id: str) -> frozenset[str]:
        """The servers that are known to be in a room; none if it is not stored.

        Those of a partial room are the ones that the answer to the join named, and those that joined since.
        """


class KeptRoomServers:
    """The servers of some rooms, those that were used last."""

    def __init__(self) -> None:
        self._rooms: OrderedDict[int, ServersAtState] = OrderedDict()
        self._servers = 0

    @property
    def known(self) -> Mapping[int, ServersAtState]:
        """By room; a copy, for work in a thread."""
        return dict(self._rooms)

    def keep(self, rooms: Mapping[int, ServersAtState]) -> None:
        """Keep what was found."""
        for room_no, servers in rooms.items():
            before = self._rooms.pop(room_no, None)
            self._servers += len(servers.names) - (0 if before is None else len(before.names))
            self._rooms[room_no] = servers
        while self._servers > MAX_SERVERS and len(self._rooms) > 1:
            _, oldest = self._rooms.popitem(last=False)
            self._servers -= len(oldest.names)


class KnownServers:
    """Implements :class:`ServersOfRoom`.

    What changed since the last time is looked up, not counted again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept = KeptRoomServers()

    async def servers(self, room_id: str) -> frozenset[str]:
        """See :meth:`ServersOfRoom.servers`."""
        return (await self.of_rooms([room_id])).get(room_id, frozenset())

    async def of_rooms(self, room_ids: Collection[str]) -> Mapping[str, frozenset[str]]:
        """The servers in those of some rooms that are stored."""
        known = self._kept.known
        names = [each for each in room_ids if "\0" not in each]

        def work(
            txn: Transaction,
        ) -> tuple[Mapping[str, frozenset[str]], Mapping[int, ServersAtState]]:
            txn.execute(
                "SELECT room_id, room_no FROM synrepl._rooms WHERE room_id = ANY (%s::text[])",
                (names,),
            )
            numbers: dict[str, int] = dict(txn.fetchall())
            found, all_servers = _servers_now(txn, set(numbers.values()), known)
            return {
                room_id: all_servers[number]
                for room_id, number in numbers.items()
                if number in all_servers
            }, found

        servers, found = await self._database.run("servers in rooms", work, read_only=True)
        self._kept.keep(found)
        return servers

    async def of_users(self, users: Collection[str]) -> Mapping[str, frozenset[str]]:
        """The servers that share a room with each of some users."""
        known = self._kept.known

        def work(
            txn: Transaction,
        ) -> tuple[Mapping[str, frozenset[str]], Mapping[int, ServersAtState]]:
            return servers_of_users(txn, users, known)

        servers, found = await self._database.run("servers of users", work, read_only=True)
        self._kept.keep(found)
        return servers


def servers_of_users(
    txn: Transaction, users: Collection[str], known: Mapping[int, ServersAtState]
) -> tuple[Mapping[str, frozenset[str]], Mapping[int, ServersAtState]]:
    """The servers that share a room with each of some users, and what was found out about rooms for that.

    :param known: servers in rooms that were found before
    """
    rooms = rooms_of(txn, users)
    numbers = {number for each in rooms.values() for number in each}
    found, servers = _servers_now(txn, numbers, known)
    return {
        user: frozenset().union(*(servers[n] for n in each if n in servers))
        for user, each in rooms.items()
    }, found


def _servers_now(
    txn: Transaction, room_nos: Collection[int], known: Mapping[int, ServersAtState]
) -> tuple[Mapping[int, ServersAtState], Mapping[int, frozenset[str]]]:
    """The servers at the current states of rooms; and of partial rooms, also those at the join."""
    found: dict[int, ServersAtState] = {}
    for room_no, (epoch, group) in current_groups(txn, room_nos).items():
        before = known.get(room_no)
        if before is not None and before.epoch == epoch:
            now = servers_at(txn, before, group)
            if now is not None:
                found[room_no] = now
    found |= current_servers(txn, set(room_nos) - found.keys())
    names = {room_no: each.names for room_no, each in found.items()}
    for room_no in partial_rooms_among(txn, room_nos):
        names[room_no] = names.get(room_no, frozenset()) | servers_at_join(txn, room_no)
    return found, names
