"""The same requests of clients to a real Synapse and to synrepl, with the same rooms: the CPU time of each.

A Synapse is installed and filled through its API. ``synrepl rooms import`` imports its database. Then both are asked
the same in turns, each in one process with a PostgreSQL of its own, on loopback. The answers are compared, too.
A round of requests is asked one after the other and measured as a whole: reading the CPU time of all processes between
two requests would let them go cold.
``SYNREPL_INTEROP_DIR`` names a directory that keeps what is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote

from benchmarks.child import REPOSITORY
from benchmarks.client_api import ApiClient, ClientApiSite
from benchmarks.database import postgres_server
from benchmarks.harness import Row, Scale, at_most, ratio
from benchmarks.process_tree import process_cpu
from benchmarks.running_master import SERVER_NAME, RunningMaster, free_ports
from benchmarks.server_cpu import ServerProcesses
from interop.databases import Databases
from interop.environments import Environment
from interop.matrix_client import Server, User
from interop.releases import CURRENT
from interop.synapse import ServerDirectory, SynapseMain

_USERS, _ROOMS, _MEMBERS, _MESSAGES = 40, 100, 10, 25

#: Requests of each kind in one round; the users take turns, so that no answer is asked for twice at once.
_ROUND = 20

#: At most a third.
_BOUND = at_most(1 / 3)

_FILTER = {
    "room": {"timeline": {"limit": 20}, "state": {"lazy_load_members": True}},
    "presence": {"types": []},
}


class Site(NamedTuple):
    """One of the two servers.

    :ivar clients: by user ID
    :ivar cpu: CPU seconds of its processes and its database so far
    """

    name: str
    clients: Mapping[str, ApiClient]
    cpu: Callable[[], float]


class Rooms(NamedTuple):
    """What both have.

    :ivar members: by room ID
    :ivar events: some event of each room
    """

    members: Mapping[str, Sequence[str]]
    events: Mapping[str, str]


def run(scale: Scale) -> Iterator[Row]:
    """CPU time of each kind of request, as a part of what Synapse takes."""
    kept = os.environ.get("SYNREPL_INTEROP_DIR")
    with TemporaryDirectory(prefix="synrepl-side-by-side-") as name, ExitStack() as stack:
        scratch = Path(name)
        scratch.chmod(0o711)  # PostgreSQL, which refuses to run as root, has to get in
        environment = Environment(CURRENT, Path(kept or scratch) / f"synapse-{CURRENT}")
        environment.install()
        databases = stack.enter_context(Databases(scratch / "postgres"))
        theirs = stack.enter_context(_synapse(environment, databases, scratch, scale))
        rooms = _fill(theirs, scale)
        ours = stack.enter_context(_synrepl(databases, scratch, list(theirs.clients)))
        yield from _compare([ours, theirs], rooms, scale.repetitions)


# -- the servers ----------------------------------------------------------------------


@contextmanager
def _synapse(
    environment: Environment, databases: Databases, scratch: Path, scale: Scale
) -> Iterator[Site]:
    name = databases.empty("synapse")
    directory = ServerDirectory(
        environment,
        scratch / "synapse",
        SERVER_NAME,
        databases.arguments(name),
        # Clients do not repeat their first sync, as they do here.
        {"presence": {"enabled": False}, "caches": {"sync_response_cache_duration": 0}},
    )
    main = SynapseMain(directory)
    with main.process:
        main.ready()
        server = Server(main.client, SERVER_NAME)
        users = [User(server, f"user{number}") for number in range(scale.of(_USERS))]
        database = ServerProcesses(databases.owner(name))
        yield Site(
            f"Synapse {CURRENT}",
            {each.id: ApiClient(main.client, each.access_token) for each in users},
            lambda: process_cpu(main.process.pid) + database.cpu(),
        )


def _fill(site: Site, scale: Scale) -> Rooms:
    """Make rooms through the API."""
    rng = Random(1)
    users = list(site.clients)
    plans = [rng.sample(users, min(_MEMBERS, len(users))) for _ in range(scale.of(_ROOMS))]

    def make(number: int) -> tuple[str, str]:
        creator, *others = plans[number]
        body = {
            "preset": "public_chat",
            "name": f"Room {number}",
            "topic": "Tea",
            "room_version": "10",
        }
        client = _own(site, creator)
        room_id = client.ask("POST", "/createRoom", body)["room_id"]
        for user in others:
            _own(site, user).ask("POST", f"/join/{quote(room_id)}", {})
        talk = Random(number)
        events = [
            _own(site, talk.choice(plans[number])).say(room_id, f"message {place}")
            for place in range(_MESSAGES)
        ]
        return room_id, events[len(events) // 2]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(len(plans))))
    return Rooms(
        {room_id: plan for (room_id, _), plan in zip(made, plans, strict=True)}, dict(made)
    )


def _own(site: Site, user: str) -> ApiClient:
    """A connection of its own, since several threads act for a user."""
    return site.clients[user].again()


@contextmanager
def _synrepl(databases: Databases, scratch: Path, users: list[str]) -> Iterator[Site]:
    directory = scratch / "synrepl"
    directory.mkdir()
    (port,) = free_ports(1)
    site = ClientApiSite(directory, users)
    settings = {
        "catalogue": ["events", "backfill", "caches"],
        "rooms": site.settings(["master"], port),
    }
    with postgres_server(prefer_system=True) as server:
        with RunningMaster(server.dsn, directory, settings):  # makes the tables
            _import(databases, directory, server.dsn, settings)
        with RunningMaster(server.dsn, directory, settings) as master:
            database = ServerProcesses(server.dsn)
            yield Site(
                "synrepl",
                {user: ApiClient(port, site.token(user)) for user in users},
                lambda: master.cpu() + database.cpu(),
            )


def _import(databases: Databases, directory: Path, target: str, settings: dict[str, Any]) -> None:
    """Import all rooms, with ``synrepl rooms import``."""
    files = {"source.dsn": databases.reader("synapse"), "target.dsn": target}
    for name, text in files.items():
        path = directory / name
        path.touch(mode=0o600)
        path.write_text(text)
    config = directory / "import.yaml"
    config.write_text(
        json.dumps(
            {
                "server_name": SERVER_NAME,
                "database_path": str(directory / "target.dsn"),
                "listeners": [{"port": free_ports(1)[0]}],
                **settings,
            }
        )
    )
    command = [sys.executable, "-m", "synrepl", "rooms", "import", "-c", str(config)]
    command += ["--database-path", str(directory / "source.dsn"), "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1800)
    # It exits with 1, since signatures could not be checked without keys.
    if done.returncode not in (0, 1) or not done.stdout:
        raise AssertionError(done.stderr[-2000:])


# -- requests -------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A kind of request.

    :ivar ask: asks a site for a user and a room; what has to be the same of the answer
    :ivar before: is done before each request, which is then measured alone
    """

    name: str
    ask: Callable[[_Asking], object]
    before: Callable[[_Asking], object] | None = None


class _Asking(NamedTuple):
    """One request.

    :ivar since: tokens by user, which syncs advance
    """

    site: Site
    rooms: Rooms
    user: str
    room_id: str
    since: dict[str, str]

    @property
    def client(self) -> ApiClient:
        """That of the user."""
        return self.site.clients[self.user]

    def sync(self, since: str | None) -> Any:
        """Sync, and remember the token."""
        query = f"filter={quote(json.dumps(_FILTER))}" + (f"&since={since}" if since else "")
        answer = self.client.ask("GET", f"/sync?timeout=0&{query}")
        self.since[self.user] = answer["next_batch"]
        return answer


def _first_sync(asking: _Asking) -> object:
    joined = asking.sync(None)["rooms"]["join"]
    return {
        room_id: [event["event_id"] for event in room["timeline"]["events"]]
        for room_id, room in joined.items()
    }


def _idle_sync(asking: _Asking) -> object:
    return asking.sync(asking.since[asking.user]).get("rooms", {}).get("join", {})


def _say(asking: _Asking) -> None:
    asking.sync(asking.since[asking.user])
    sender = next(u for u in asking.rooms.members[asking.room_id] if u != asking.user)
    asking.site.clients[sender].say(asking.room_id, "one more")


def _next_sync(asking: _Asking) -> object:
    joined = asking.sync(asking.since[asking.user])["rooms"]["join"]
    return {
        room_id: [event["content"]["body"] for event in room["timeline"]["events"]]
        for room_id, room in joined.items()
    }


def _messages(asking: _Asking) -> object:
    path = f"/rooms/{quote(asking.room_id)}/messages?dir=b&limit=50"
    chunk = asking.client.ask("GET", path)["chunk"]
    return [each["event_id"] for each in chunk if each["content"].get("body") != "one more"][:20]


def _members(asking: _Asking) -> object:
    found = asking.client.ask("GET", f"/rooms/{quote(asking.room_id)}/members")["chunk"]
    return sorted(each["state_key"] for each in found)


def _context(asking: _Asking) -> object:
    event_id = quote(asking.rooms.events[asking.room_id])
    found = asking.client.ask("GET", f"/rooms/{quote(asking.room_id)}/context/{event_id}?limit=10")
    return [each["event_id"] for each in (*found["events_before"], *found["events_after"])]


_KINDS = (
    _Kind("first sync", _first_sync),
    _Kind("sync without news", _idle_sync),
    _Kind("sync with a message in one room", _next_sync, _say),
    _Kind("/messages of 50", _messages),
    _Kind("/members", _members),
    _Kind("/context of 10", _context),
)


def _measured(kind: _Kind, round_: Sequence[_Asking]) -> tuple[float, list[object]]:
    """CPU seconds of the requests of a round, and what has to be the same of the answers."""
    seconds, said = 0.0, list[object]()
    for together in [round_] if kind.before is None else [[each] for each in round_]:
        if kind.before is not None:
            kind.before(together[0])
        before = together[0].site.cpu()
        said.extend(map(kind.ask, together))
        seconds += together[0].site.cpu() - before
    return seconds, said


def _compare(sites: Sequence[Site], rooms: Rooms, repetitions: int) -> Iterator[Row]:
    """Each kind of request, at both in turns; then all of them together."""
    since: dict[str, dict[str, str]] = {site.name: {} for site in sites}
    sums = {site.name: 0.0 for site in sites}
    room_ids = list(rooms.members)
    for kind in _KINDS:
        found: dict[str, list[float]] = {site.name: [] for site in sites}
        for nth in range(repetitions + 1):
            answers = []
            for site in sites:
                round_ = []
                for place in range(_ROUND):
                    room_id = room_ids[(nth * _ROUND + place) % len(room_ids)]
                    members = rooms.members[room_id]
                    user = members[(nth + place) % len(members)]
                    asking = _Asking(site, rooms, user, room_id, since[site.name])
                    if user not in asking.since:
                        asking.sync(None)
                    round_.append(asking)
                seconds, said = _measured(kind, round_)
                answers.append(said)
                if nth:  # the first round is a warm-up
                    found[site.name].append(seconds / _ROUND)
            if answers[0] != answers[1]:
                raise AssertionError(f"the answers to {kind.name} differ")
        ours, theirs = (found[site.name] for site in sites)
        for site in sites:
            sums[site.name] += median(found[site.name])
        yield ratio(
            kind.name,
            ours,
            theirs,
            of=sites[1].name,
            measured_in="ms of CPU",
            bound=_BOUND,
            scale=1e3,
        )
    ours_sum, theirs_sum = (sums[site.name] for site in sites)
    yield ratio(
        "one of each",
        [ours_sum],
        [theirs_sum],
        of=sites[1].name,
        measured_in="ms of CPU",
        bound=_BOUND,
        scale=1e3,
    )
