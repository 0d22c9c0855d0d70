"""A very large room of another server is joined with a part of its state, and completed while others use the server.

The room is W3 of :mod:`benchmarks.room_workloads`: 85,000 members, 100,000 state events. The servers are those of
:mod:`benchmarks.room_joins`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import perf_counter, sleep
from typing import Self, TypeVar
from urllib.parse import quote

from benchmarks.client_api import ApiClient
from benchmarks.federated_master import wait_until_complete
from benchmarks.harness import Row, Scale, at_least, at_most
from benchmarks.room_joins import (
    RATE,
    SMALL,
    JoiningServer,
    ResidentRooms,
    first_rows,
    room_servers,
)
from benchmarks.signed_rooms import RoomSize

T = TypeVar("T")

_W3 = RoomSize(85_000, 15_000)

#: Seconds between two requests of a client in another room.
_PAUSE_S = 0.1

#: Seconds in which that client warms up, and in which it is measured what its requests take by themselves.
_WARM_S, _IDLE_S = 1.0, 3.0


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
    """The join, the completion, and the requests meanwhile."""
    size = RoomSize(*map(scale.of, _W3[:2]))
    with room_servers({"small": SMALL, "W3": size}) as (rooms, directory, dsn):
        yield from _resync(rooms, directory, dsn, size)


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
        yield from first_rows(what, first, grown, 3.0)
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
        at_least(RATE),
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
