"""A real Synapse and synrepl join the same room of the same server of ours, both with a part of its state first.

Each is one process with a PostgreSQL of its own, which has joined a small room before; they reach the resident server
over TLS on loopback, one after the other. ``SYNREPL_INTEROP_DIR`` names a directory that keeps what is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from benchmarks.database import postgres
from benchmarks.federated_master import join_and_say, wait_until_complete
from benchmarks.harness import Row, Scale, at_most
from benchmarks.process_tree import process_cpu
from benchmarks.room_joins import JoiningServer, ResidentRooms
from benchmarks.server_cpu import ServerProcesses
from benchmarks.signed_rooms import RoomSize
from interop.databases import Databases
from interop.environments import Environment
from interop.federation.synapse_server import SynapseServer
from interop.releases import CURRENT
from interop.synapse import create_template_database

_SMALL = RoomSize(30, 30)
_LARGE = RoomSize(3_000, 1_000)

#: At most a third.
_BOUND = at_most(1 / 3)


class Joined(NamedTuple):
    """What a join took.

    :ivar first: seconds from the request until the first message was sent
    :ivar complete: seconds until the room was complete
    :ivar cpu: CPU seconds until then, with those of the database
    """

    first: float
    complete: float
    cpu: float


def run(scale: Scale) -> Iterator[Row]:
    """Seconds to the first message, and CPU time to completion, as a part of what Synapse takes."""
    kept = os.environ.get("SYNREPL_INTEROP_DIR")
    count = min(scale.repetitions, 3)
    size = RoomSize(scale.of(_LARGE.members), scale.of(_LARGE.changes))
    names = [f"large{number}" for number in range(count)]
    with TemporaryDirectory(prefix="synrepl-joins-") as name, ExitStack() as stack:
        scratch = Path(name)
        scratch.chmod(0o755)  # PostgreSQL, which refuses to run as root, has to get in
        environment = Environment(CURRENT, Path(kept or scratch).absolute() / f"synapse-{CURRENT}")
        environment.install()
        databases = stack.enter_context(Databases(scratch / "postgres"))
        create_template_database(environment, databases, scratch / "virgin")
        resident, joining = (stack.enter_context(postgres()) for _ in range(2))
        sizes = {"small": _SMALL, **dict.fromkeys(names, size)}
        rooms = ResidentRooms(scratch, resident, sizes)
        stack.enter_context(rooms.site.start())
        theirs = stack.enter_context(
            SynapseServer(environment, databases, scratch / "theirs", rooms.authority)
        )
        ours = stack.enter_context(JoiningServer(rooms, scratch, joining))
        by_them = _of_synapse(theirs, rooms)
        by_them("small")
        pairs = [(_of_ours(ours)(each), by_them(each)) for each in names]
    what = f"{size.members:,} members, {size.events:,} state events"
    for title, unit, field in (
        ("from the request to the first message", "s", "first"),
        ("CPU time until the room is complete", "s", "cpu"),
        ("until the room is complete", "s", "complete"),
    ):
        both = [(getattr(one, field), getattr(other, field)) for one, other in pairs]
        ratios = [here / there for here, there in both]
        here, there = (median(each) for each in zip(*both, strict=True))
        yield Row(
            f"{what}: {title}",
            median(ratios),
            f"× Synapse {CURRENT}",
            None if field == "complete" else _BOUND,
            (min(ratios), max(ratios)),
            f"{here:.2f} against {there:.2f} {unit}",
        )


def _of_ours(server: JoiningServer) -> Callable[[str], Joined]:
    def join(name: str) -> Joined:
        return _measured(
            lambda: server.join(name).total,
            lambda: wait_until_complete(server.site.dsn),
            server.cpu,
        )

    return join


def _of_synapse(server: SynapseServer, rooms: ResidentRooms) -> Callable[[str], Joined]:
    client = server.register("joiner")
    database = ServerProcesses(server.dsn)
    assert server.process is not None
    pid = server.process.pid

    def join(name: str) -> Joined:
        return _measured(
            lambda: join_and_say(client, rooms.room_id(name), rooms.site.name).total,
            lambda: wait_until_complete(server.dsn, "partial_state_rooms"),
            lambda: process_cpu(pid) + database.cpu(),
        )

    return join


def _measured(
    join: Callable[[], float], wait: Callable[[], None], cpu: Callable[[], float]
) -> Joined:
    began, used = perf_counter(), cpu()
    first = join()
    wait()
    return Joined(first, perf_counter() - began, cpu() - used)
