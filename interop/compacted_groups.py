"""Compacts the state groups of a real server's database, and has the server read them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2

from interop.databases import Databases
from interop.environments import Environment
from interop.matrix_client import Server, User, q
from interop.releases import MODERN
from interop.report import Section, Table
from interop.synapse import ServerDirectory, SynapseMain
from interop.synrepl_processes import REPOSITORY
from synrepl.pipeline.rooms.compaction import compact_groups
from synrepl.pipeline.rooms.groups.applying import apply_compaction
from synrepl.pipeline.rooms.reading.open import open_rooms
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

RELEASE = MODERN

_SERVER = "groups.example"

#: Entries that the room's state gets, and how often they are changed then.
_KEYS, _CHANGES = 3_000, 2_000

#: Every so many events, the server is asked for the state there.
_ASKED_EVERY = 500

_MAX_SHARE = 0.10

_STORY = """\
A room on a real {release} gets {keys:,} state entries, which are then changed {changes:,} times. Its state groups are
compacted on Spark, and the result is applied to a copy of the database. There, the digests of all groups are computed
again. Then the server runs on the copy, and is asked for the state at events; it had been asked before."""


def section(environment: Environment, databases: Databases, directory: Path) -> Section:
    """Run the scenario; its section of the report."""
    name = databases.copy(RELEASE, "groups")
    files = ServerDirectory(environment, directory / "before", _SERVER, databases.arguments(name))
    main = SynapseMain(files)
    with main.process:
        main.ready()
        user = User(Server(main.client, _SERVER), "compactor")
        room = user.post("create a room", "/createRoom", {"preset": "private_chat"})["room_id"]
        asked = _events(user, room)
        before = [_state_at(user, room, event_id) for event_id in asked]
    copy = databases.duplicate(name, "compacted_groups")
    dsn = databases.owner(copy)
    options = SessionOptions(master="local[2]", python_path=(REPOSITORY,))
    with open_session(options) as spark:
        with open_rooms(spark, databases.owner(name)) as frames:
            rows = compact_groups(frames).persist()
            planned = {row.state_group: row for row in rows.drop("entries").collect()}
            apply_compaction(rows, dsn)
        with open_rooms(spark, dsn) as frames:
            found = {row.state_group: row for row in compact_groups(frames).collect()}
    moved = ServerDirectory(environment, directory / "after", _SERVER, databases.arguments(copy))
    main = SynapseMain(moved)
    with main.process:
        main.ready()
        user.moved(Server(main.client, _SERVER))
        after = [_state_at(user, room, event_id) for event_id in asked]
        user.put("set state", f"/rooms/{q(room)}/state/org.example.later/", {"n": 1})
    stored = (_count(databases.owner(name)), _count(dsn))
    told = Section(
        f"State groups of a real {RELEASE} are compacted",
        _STORY.format(release=RELEASE, keys=_KEYS, changes=_CHANGES).splitlines(),
    )
    hops = max(row.hops or 0 for row in planned.values())
    told.tables.append(
        (
            "What was stored:",
            Table(
                ("groups", "rows before", "rows after", "share", "longest chain"),
                [(len(planned), *stored, f"{stored[1] / stored[0]:.1%}", hops)],
            ),
        )
    )
    equal = sum(found[group].digest_before == row.digest_before for group, row in planned.items())
    told.check("the digests of all groups are equal", equal == len(planned), f"{equal:,}")
    told.check("at most a tenth of the rows is left", stored[1] <= _MAX_SHARE * stored[0])
    same = sum(one == two for one, two in zip(before, after, strict=True))
    told.check("the server has the same states", same == len(asked), f"at {same} events")
    return told


def _events(user: User, room: str) -> Sequence[str]:
    """Fill the room with state; some of its events."""
    found = []
    for number in range(_KEYS + _CHANGES):
        key = number if number < _KEYS else number * 7919 % _KEYS
        path = f"/rooms/{q(room)}/state/org.example.entry/{key}"
        event_id = user.put("set state", path, {"number": number})["event_id"]
        if number % _ASKED_EVERY == _ASKED_EVERY - 1:
            found.append(event_id)
    return found


def _state_at(user: User, room: str, event_id: str) -> set[str]:
    path = f"/rooms/{q(room)}/context/{q(event_id)}?limit=0"
    answer: dict[str, Any] = user.call("ask for the state at an event", "GET", path)
    return {event["event_id"] for event in answer["state"]}


def _count(dsn: str) -> int:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM state_groups_state")
        return int(cursor.fetchone()[0])
