"""Imports the rooms of real servers while clients use them, and follows them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
from signedjson.key import decode_signing_key_base64, get_verify_key
from unpaddedbase64 import encode_base64

from interop import polling, spark_jobs
from interop.databases import Databases
from interop.environments import Environment
from interop.matrix_client import Server, User, q
from interop.processes import Process
from interop.releases import CURRENT, MODERN, Release
from interop.report import Section, Table, answers_table
from interop.synapse import ServerDirectory, SynapseMain
from interop.synapse_over_redis import EightProcesses
from interop.synrepl_processes import REPOSITORY, environment
from interop.traffic import Traffic
from synrepl.testing.redis import RedisTestServer

RELEASES_IMPORTED = (MODERN, CURRENT)

_SERVER = "rooms.example"

#: What clients do before the import begins, and while it runs.
_BEFORE, _MEANWHILE = 300, 300

#: Users who do things at once, and how many each does.
_CROWD, _CROWD_TALK = 6, 12

_LONGEST_S = 120.0

_STORY = """\
Clients do {before} things on a real {release}. Then its rooms are imported from its database, with a role that may
only read, while clients do {meanwhile} more, and the server's streams are followed. Before and meanwhile, six users
also talk and change a room's topic all at once, so that branches arise where several processes make events.
Every event is hashed and its ID computed again, every signature verified, every verdict and every state group
computed again. In the end, the import has every event of the server, and nothing differs."""


def sections(
    release: Release,
    environment: Environment,
    databases: Databases,
    directory: Path,
    seed: int = 1,
) -> Iterator[Section]:
    """Run the scenario with one release, and then the jobs on Spark; the sections of the report.

    :param seed: of the clients' requests
    """
    name = databases.copy(release, f"rooms_{release.name}")
    server_directory = ServerDirectory(environment, directory, _SERVER, databases.arguments(name))
    dsn = databases.reader(name)
    target = databases.owner(databases.empty(f"imported_{release.name}"))
    with ExitStack() as importing:
        with _running(release, server_directory) as server:
            Traffic(server, seed, _BEFORE, groups=release is not CURRENT).run()
            _all_at_once(server, f"before{seed}")
            keys = _public_keys(directory)
            importer = _Importer(directory, dsn, target, keys)
            importing.enter_context(importer.process)
            with ThreadPoolExecutor(1) as pool:
                traffic = Traffic(server, seed + 1, _MEANWHILE, groups=release is not CURRENT)
                busy = pool.submit(traffic.run)
                importer.first_status()
                _all_at_once(server, f"meanwhile{seed}")
                busy.result()
            seen = spark_jobs.rooms_seen(server)
            importer.wait_for_all(dsn)
        # The server may add events of its own until it has ended.
        status = importer.wait_for_all(dsn)
    story = _STORY.format(release=release, before=_BEFORE, meanwhile=_MEANWHILE)
    section = Section(f"Rooms of a running {release} are imported", story.splitlines())
    _report(section, status, dsn, server)
    yield section
    title = f"The same rooms of {release} on Spark"
    yield spark_jobs.section(title, dsn, target, keys, seen)


def _all_at_once(server: Server, name: str) -> None:
    """Let users of one room send messages and set its topic at the same time."""
    users = [User(server, f"{name}-{number}") for number in range(_CROWD)]
    override = {"users_default": 50}
    made = users[0].post(
        "create a room",
        "/createRoom",
        {"preset": "public_chat", "power_level_content_override": override},
    )
    room = made["room_id"]
    for user in users[1:]:
        user.post("join", f"/rooms/{q(room)}/join", {})

    def talk(user: User) -> None:
        for number in range(_CROWD_TALK):
            text = f"{user.id} {number}"
            if number % 3:
                user.send(room, {"msgtype": "m.text", "body": text})
            else:
                user.put("set state", f"/rooms/{q(room)}/state/m.room.topic/", {"topic": text})

    with ThreadPoolExecutor(_CROWD) as pool:
        list(pool.map(talk, users))


class _Importer:
    """The importing process."""

    def __init__(self, directory: Path, source: str, target: str, keys: object) -> None:
        self._status = directory / "status.json"
        settings = directory / "import.json"
        settings.write_text(
            json.dumps(
                {
                    "source": source,
                    "target": target,
                    "keys": keys,
                    "status": str(self._status),
                    "settle_s": 2.0,
                }
            )
        )
        self.process = Process(
            "the import",
            Path(sys.executable),
            ["-m", "interop.room_importer", settings],
            REPOSITORY,
            directory / "import.out",
            environment(),
        )

    def first_status(self) -> dict[str, Any]:
        """Wait until the rooms are copied."""
        return polling.wait_until("the copy of the rooms", self.status, _LONGEST_S)

    def status(self) -> dict[str, Any]:
        """What the process wrote last."""
        self.process.still_runs()
        found: dict[str, Any] = json.loads(self._status.read_text())
        return found

    def wait_for_all(self, dsn: str) -> dict[str, Any]:
        """Wait until every event of the server is imported; the status then."""
        return polling.wait_until(
            "the import of every event", lambda: self.complete(_count_events(dsn)), _LONGEST_S
        )

    def complete(self, events: int) -> dict[str, Any] | None:
        """Its status if it has imported so many events."""
        status = self.status()
        return status if status["report"]["counts"]["events"] >= events else None


@contextmanager
def _running(release: Release, server_directory: ServerDirectory) -> Iterator[Server]:
    """The server as it is usually run: in eight processes, or in one."""
    with ExitStack() as stack:
        if release is CURRENT:
            redis = RedisTestServer()
            stack.callback(redis.close)
            eight = stack.enter_context(EightProcesses(server_directory, redis.port))
            yield Server(eight.port, _SERVER)
        else:
            main = SynapseMain(server_directory)
            stack.enter_context(main.process)
            main.ready()
            yield Server(main.client, _SERVER)


def _public_keys(directory: Path) -> dict[str, dict[str, str]]:
    """The server's own key, which it does not store in its database."""
    algorithm, version, seed = (directory / "signing.key").read_text().split()
    key = get_verify_key(decode_signing_key_base64(algorithm, version, seed))
    return {_SERVER: {f"{algorithm}:{version}": encode_base64(key.encode())}}


def _count_joins(dsn: str) -> int:
    """The number of events that follow several events."""
    statement = "SELECT event_id FROM event_edges GROUP BY event_id HAVING count(*) > 1"
    return len(_read(dsn, statement))


def _count_events(dsn: str) -> int:
    return int(_read(dsn, "SELECT count(*) FROM events")[0][0])


def _read(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
    finally:
        connection.close()


def _report(section: Section, status: dict[str, Any], dsn: str, server: Server) -> None:
    counts, copy = status["report"]["counts"], status["copy"]
    events = _count_events(dsn)
    rows = [(name, value) for name, value in counts.items() if isinstance(value, int)]
    rows.append(("events that join branches", _count_joins(dsn)))
    section.tables.append(("What was imported and verified:", Table(("count", "number"), rows)))
    rate = copy["events"] / copy["cpu"]
    section.tables.append(
        (
            "The copy, before following:",
            Table(
                ("events", "seconds", "events per second of CPU"),
                [(copy["events"], f"{copy['seconds']:.1f}", round(rate))],
            ),
        )
    )
    section.tables.append(("What clients did, and how often:", answers_table(server.answers)))
    findings = status["findings"]
    section.check("nothing differs and nothing is corrupt", not findings, "; ".join(findings[:3]))
    section.check("every event is imported", counts["imported"] == events, str(events))
    signed = counts["signatures"] == events
    section.check("every event's signatures are verified", signed, str(counts["signatures"]))
    section.check("rooms had branches that were joined", _count_joins(dsn) > 0)
    section.check("every room is imported", not status["report"]["left_out"])
    theirs: dict[str, list[str]] = {}
    for room_id, event_id in _read(
        dsn, "SELECT room_id, event_id FROM event_forward_extremities ORDER BY 2"
    ):
        theirs.setdefault(room_id, []).append(event_id)
    section.check(
        "every room has the server's forward extremities", theirs == status["extremities"]
    )
