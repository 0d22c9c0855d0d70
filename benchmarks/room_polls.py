"""Syncs that wait, over HTTP: the memory of each, and the CPU time in which those are answered whom an event wakes."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.child import Child
from benchmarks.client_api import ApiClient, ClientApiSite
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.posted_rooms import OWNER, PostedRooms
from benchmarks.running_master import SERVER_NAME, RunningMaster, free_ports
from benchmarks.server_cpu import ServerProcesses

#: Syncs that wait, and members of each room.
_WAITING, _MEMBERS = 10_000, 1_000

#: Clients that wait before memory is measured first: what any number of them needs is there then.
_WARM = 200

_TIMES = 7
_PATIENCE_S = 60.0


def run(scale: Scale) -> Iterator[Row]:
    """Memory and CPU time."""
    waiting, members = scale.of(_WAITING), scale.of(_MEMBERS)
    users = [f"@user{number}:{SERVER_NAME}" for number in range(waiting)]
    with TemporaryDirectory() as name, postgres() as dsn:
        directory = Path(name)
        (port,) = free_ports(1)
        site = ClientApiSite(directory, [*users, OWNER])
        settings = {
            "catalogue": ["events", "backfill", "caches"],
            "rooms": site.settings(["master"], port),
        }
        with RunningMaster(dsn, directory, settings) as master:
            rooms = PostedRooms(master)
            ids = [
                rooms.add(f"room{first}", users[first : first + members], 1)
                for first in range(0, waiting, members)
            ]
            rooms.post()
        # Another process, which has not allocated memory for that before.
        with RunningMaster(dsn, directory, settings) as master:
            owner = ApiClient(port, site.token(OWNER))
            given = directory / "given.json"
            given.write_text(
                json.dumps(
                    {
                        "tokens": [site.token(user) for user in users],
                        "since": owner.ask("GET", "/sync")["next_batch"],
                    }
                )
            )
            with Child("room_polls_process", port, given) as clients:
                yield _memory(master, clients, waiting)
                yield from _wakes(master, ServerProcesses(dsn), clients, owner, ids, members)


def _memory(master: RunningMaster, clients: Child, waiting: int) -> Row:
    clients.command(f"open {_WARM}")
    clients.command("poll")
    _until_waiting(master, _WARM)
    before = master.memory()
    clients.command(f"open {waiting}")
    clients.command("poll")
    _until_waiting(master, waiting)
    used = (master.memory() - before) / (waiting - _WARM) / 1000
    name = f"{waiting:,} syncs that wait over HTTP: memory with the connection"
    return Row(name, used, "kB each", at_most(20))


def _wakes(
    master: RunningMaster,
    server: ServerProcesses,
    clients: Child,
    owner: ApiClient,
    ids: list[str],
    members: int,
) -> Iterator[Row]:
    spent: list[float] = []
    of_database: list[float] = []
    seconds: list[float] = []
    for number in range(_TIMES):
        waiting = _waiting(master)
        mine, theirs = master.cpu(), server.cpu()
        owner.say(ids[number % len(ids)], f"message {number}")
        answered = clients.command(f"answered {members}")
        if answered["with_news"] != members:
            raise AssertionError(answered)
        _until_waiting(master, waiting - members)
        spent.append((master.cpu() - mine) * 1e3)
        of_database.append((server.cpu() - theirs) * 1e3)
        seconds.append(answered["seconds"])
        clients.command("poll")
        _until_waiting(master, waiting)
    yield Row(
        f"an event wakes {members:,} of them, until they are answered",
        median(spent),
        "ms of CPU",
        at_most(200),
        (min(spent), max(spent)),
        f"the database {median(of_database):.0f} ms; {median(seconds):.2f} s until the last answer",
    )


def _until_waiting(master: RunningMaster, count: int) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while _waiting(master) != count:
        if time.monotonic() > give_up:
            raise AssertionError(f"{_waiting(master)} requests wait instead of {count}")
        time.sleep(0.05)


def _waiting(master: RunningMaster) -> int:
    with urllib.request.urlopen(f"{master.http}/status", timeout=60) as answer:
        status: Any = json.load(answer)
    return int(status["client_api"]["syncs_waiting"])
