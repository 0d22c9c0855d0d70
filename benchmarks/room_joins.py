"""Joins of large rooms of another server: with a part of the state, its completion, and with the whole state.

=== ======================================================================================
W2  10,000 members, 50,000 state events, most of which only later ones cite
W3  85,000 members, 100,000 state events
=== ======================================================================================

The servers are real masters, which reach one another over TLS on loopback, each with a PostgreSQL of its own. The room is
made once, and is joined by servers that have joined a small room before, so that keys, connections and plans are
there. CPU time is that of the joining master and of its PostgreSQL together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Self, TypeVar
from urllib.parse import quote

from benchmarks.child import Child
from benchmarks.client_api import ApiClient
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

T = TypeVar("T")

_SMALL = RoomSize(30, 30)
_W2 = RoomSize(10_000, 40_000)
_W3 = RoomSize(85_000, 15_000)

#: Events a second and core, of a full join and of a resync.
_RATE = 3_000

#: MiB by which a joining process may grow.
_GROWTH_MIB = 60.0

#: Seconds between two requests of a client in another room.
_PAUSE_S = 0.1

#: Seconds in which that client warms up, and in which it is measured what its requests take by themselves.
_WARM_S, _IDLE_S = 1.0, 3.0


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


class OtherRooms:
    """A client that reads and writes in a room of its own, and how long each request takes."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        created = client.ask("POST", "/createRoom", {"preset": "public_chat"})
        self._room_id = str(created["room_id"])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.milliseconds: list[float] = []

    def _run(self) -> None:
        since = self._client.ask("GET", "/sync")["next_batch"]
        page = f"/rooms/{quote(self._room_id)}/messages?dir=b&limit=20"
        while not self._stop.wait(_PAUSE_S):
            self._timed(lambda: self._client.say(self._room_id, "meanwhile"))
            sync = f"/sync?timeout=0&since={quote(since)}"
            since = self._timed(partial(self._client.ask, "GET", sync))["next_batch"]
            self._timed(partial(self._client.ask, "GET", page))

    def _timed(self, ask: Callable[[], T]) -> T:
        began = perf_counter()
        found = ask()
        self.milliseconds.append((perf_counter() - began) * 1e3)
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def run(scale: Scale) -> Iterator[Row]:
    """W2: with a part of the state, and with all of it."""
    size = RoomSize(*map(scale.of, _W2[:2]))
    with _servers({"small": _SMALL, "W2": size}) as (rooms, directory, dsn):
        yield from _partial_and_whole(rooms, directory, dsn, size)


def run_large(scale: Scale) -> Iterator[Row]:
    """W3: with a part of the state, and its completion."""
    size = RoomSize(*map(scale.of, _W3[:2]))
    with _servers({"small": _SMALL, "W3": size}) as (rooms, directory, dsn):
        yield from _resync(rooms, directory, dsn, size)


@contextmanager
def _servers(sizes: dict[str, RoomSize]) -> Iterator[tuple[ResidentRooms, Path, str]]:
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
        yield from _first(what, first, grown, 2.0)
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
        at_least(_RATE),
        None,
        f"{size.events / whole.total:,.0f} a second of wall time",
    )


def _resync(rooms: ResidentRooms, directory: Path, dsn: str, size: RoomSize) -> Iterator[Row]:
    what = f"W3, {size.members:,} members, {size.events:,} state events"
    with (
        JoiningServer(rooms, directory, dsn) as server,
        OtherRooms(server.site.other_client()) as others,
    ):
        sleep(_WARM_S)
        cpu, other = server.cpu(), len(others.milliseconds)
        sleep(_IDLE_S)
        idle = others.milliseconds[other:]
        of_request = (server.cpu() - cpu) / len(idle)
        before = server.master.memory()
        began = perf_counter()
        first = server.join("W3")
        grown = server.master.peak() - before
        yield from _first(what, first, grown, 3.0)
        cpu, other, joined = server.cpu(), len(others.milliseconds), perf_counter()
        wait_until_complete(server.site.dsn)
        ended = perf_counter()
        latencies = others.milliseconds[other:]
        of_requests = of_request * len(latencies)
        used = server.cpu() - cpu - of_requests
        grown = server.master.peak() - before
    yield Row(
        f"{what}: resync",
        size.events / used,
        "events a second and core",
        at_least(_RATE),
        None,
        f"without the client's requests, which take {of_requests / (used + of_requests):.0%} of the CPU time;"
        f" {size.events / (ended - joined):,.0f} a second of wall time, complete {ended - began:.1f} s after the"
        f" request to join; the process grows by {grown / 2**20:.0f} MiB",
    )
    p99 = quantiles(latencies, n=100)[98]
    yield Row(
        f"{what}: requests in other rooms during the resync, p99",
        p99,
        "ms",
        at_most(50),
        None,
        f"{len(latencies):,} requests, median {quantiles(latencies, n=2)[0]:.1f} ms, longest"
        f" {max(latencies):.0f} ms; before the join p99 {quantiles(idle, n=100)[98]:.1f} ms",
    )


def _first(what: str, first: FirstMessage, grown: int, most: float) -> Iterator[Row]:
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
