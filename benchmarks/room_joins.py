"""Joins of a large room of another server, with a part of the state and with all of it.

The room is W2 of :mod:`benchmarks.room_workloads`: 10,000 members and 50,000 state events, most of which only later ones cite.

The servers are real masters, which reach one another over TLS on loopback, each with a PostgreSQL of its own. The room is
made once, and is joined by servers that have joined a small room before, so that keys, connections and plans are
there. CPU time is that of the joining master and of its PostgreSQL together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.federated_master import (
    FederatedSite,
    FirstMessage,
    join_and_say,
    join_whole,
    new_database,
    wait_until_complete,
    wait_until_released,
)
from benchmarks.harness import Row, Scale, at_least, at_most
from benchmarks.running_master import RunningMaster
from benchmarks.server_cpu import ServerProcesses
from benchmarks.signed_rooms import RoomSize
from tests.adapters.federation.authorities import Authority

#: The room that a server has joined before.
SMALL = RoomSize(30, 30)

_W2 = RoomSize(10_000, 40_000)

#: Events a second and core, of a full join and of a resync.
RATE = 3_000

#: MiB by which a joining process may grow.
_GROWTH_MIB = 60.0


class ResidentRooms:
    """A server that has rooms, and what others need to join them.

    :ivar site: of the server
    """

    def __init__(self, directory: Path, dsn: str, sizes: dict[str, RoomSize]) -> None:
        self._directory = directory
        self.authority = Authority(directory)
        directory = directory / "resident"
        directory.mkdir()
        self.site = FederatedSite(directory, dsn, self.authority)
        arguments: list[object] = []
        for name, size in sizes.items():
            arguments += [self.room_id(name), *size]
        with Child(
            "room_joins_process", dsn, self.site.name, self.site.clients.key_path, *arguments
        ) as child:
            child.receive()
        wait_until_released(dsn)

    def room_id(self, name: str) -> str:
        """The ID of a room."""
        return f"!{name}:{self.site.name}"


class JoiningServer:
    """A server that joins rooms.

    :ivar site: its files
    :ivar master: its process
    :ivar client: of its user
    """

    _numbers = count()

    def __init__(self, rooms: ResidentRooms, directory: Path, dsn: str) -> None:
        number = next(self._numbers)
        directory = directory / f"joining{number}"
        directory.mkdir()
        self._rooms = rooms
        database = new_database(dsn, f"joining{number}")
        self.site = FederatedSite(directory, database, rooms.authority, rooms.site.name)
        self.master: RunningMaster = self.site.start()
        self._postgres = ServerProcesses(dsn)
        self.client = self.site.client()

    def __enter__(self) -> Self:
        self.master.__enter__()
        join_and_say(self.client, self._rooms.room_id("small"), self._rooms.site.name)
        wait_until_complete(self.site.dsn)
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.master.__exit__(None, None, None)

    def join(self, name: str) -> FirstMessage:
        """Join a room with a part of its state."""
        return join_and_say(self.client, self._rooms.room_id(name), self._rooms.site.name)

    def join_whole(self, name: str) -> FirstMessage:
        """Join a room with its whole state."""
        via, room_id = self._rooms.site.name, self._rooms.room_id(name)
        return join_whole(self.master, self.client, self.site.user_id, room_id, via)

    def cpu(self) -> float:
        """CPU seconds so far."""
        return self.master.cpu() + self._postgres.cpu()


def run(scale: Scale) -> Iterator[Row]:
    """W2: with a part of the state, and with all of it."""
    size = RoomSize(*map(scale.of, _W2[:2]))
    with room_servers({"small": SMALL, "W2": size}) as (rooms, directory, dsn):
        yield from _partial_and_whole(rooms, directory, dsn, size)


@contextmanager
def room_servers(sizes: dict[str, RoomSize]) -> Iterator[tuple[ResidentRooms, Path, str]]:
    """A server with rooms, which runs; where others have their files; the DSN of a PostgreSQL for them."""
    with TemporaryDirectory() as name, postgres() as resident, postgres() as joining:
        directory = Path(name)
        rooms = ResidentRooms(directory, resident, sizes)
        with rooms.site.start():
            yield rooms, directory, joining


def _partial_and_whole(
    rooms: ResidentRooms, directory: Path, dsn: str, size: RoomSize
) -> Iterator[Row]:
    what = f"W2, {size.members:,} members, {size.events:,} state events"
    with JoiningServer(rooms, directory, dsn) as server:
        before = server.master.memory()
        first = server.join("W2")
        grown = server.master.peak() - before
        yield from first_rows(what, first, grown, 2.0)
    with JoiningServer(rooms, directory, dsn) as server:
        before, cpu = server.master.memory(), server.cpu()
        whole = server.join_whole("W2")
        used, grown = server.cpu() - cpu, server.master.peak() - before
    yield Row(
        f"{what}: the same, by a full join",
        whole.total / first.total,
        "× the partial join",
        at_least(20),
        None,
        f"{whole.total:.2f} s; the process grows by {grown / 2**20:.0f} MiB",
    )
    yield Row(
        f"{what}: full join",
        size.events / used,
        "events a second and core",
        at_least(RATE),
        None,
        f"{size.events / whole.total:,.0f} a second of wall time",
    )


def first_rows(what: str, first: FirstMessage, grown: int, most: float) -> Iterator[Row]:
    """What a user waited for, and the memory that it took.

    :param what: the room
    :param grown: bytes
    :param most: seconds
    """
    yield Row(
        f"{what}: from the request to the first message, by a partial join",
        first.total,
        "s",
        at_most(most),
        None,
        f"{first.join:.2f} s until it is answered",
    )
    yield Row(
        f"{what}: memory of the joining process", grown / 2**20, "MiB more", at_most(_GROWTH_MIB)
    )
