"""matrix-nio: two users on two workers talk while every process is restarted."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from interop.clients.deployment import ClientDeployment
from interop.clients.environments import PROGRAMS, ClientEnvironments
from interop.report import Section, Table
from synrepl.core.errors import Unavailable

#: Messages that each user sends, and after how many of all of them which process is restarted how.
_MESSAGES = 60
_RESTARTS = (
    (20, "master", False),
    (45, "worker1", False),
    (70, "worker2", True),
    (95, "master", True),
)


class ProgramFailed(Unavailable):
    """{program} ended with {status}: {reason}"""


class Talk(NamedTuple):
    """What the program reports; see ``programs/nio_program.py``."""

    room: str
    sent: Sequence[str]
    seen: dict[str, Sequence[str]]
    histories: dict[str, Sequence[str]]
    retries: dict[str, int]
    members: Sequence[str]
    context: bool
    rooms: Sequence[str]
    name: str
    power: dict[str, int]
    missed: Sequence[str]
    messages: dict[str, Sequence[int]]
    data: dict[str, bool]


def section(environments: ClientEnvironments, deployment: ClientDeployment) -> Section:
    """Have the conversation, and check what both users saw."""
    found = Section(
        "matrix-nio",
        (
            "Two users, each on a worker of its own, sync all the time, and send messages to a private room and to",
            "each other's devices at once. Meanwhile the master is ended and started, then one worker, then the other is killed and",
            "started, then the master is killed. A program that gets no answer sends the request again, with the",
            "same transaction ID. Afterwards one types, reads and is present, they page back through the room, redact,",
            "set the topic, and one is kicked.",
        ),
    )
    restarts: list[str] = []
    talk = _talk(environments, deployment, restarts)
    alice, bob = deployment.users
    rows = [
        (user, talk.retries[user], len(talk.seen[user]), len(talk.histories[user]))
        for user in deployment.users
    ]
    found.tables.append(
        (
            f"{len(talk.sent)} messages were sent, amid {len(restarts)} restarts ({', '.join(restarts)}).",
            Table(("user", "requests made again", "seen in syncs", "in the history"), rows),
        )
    )
    found.check("every message has an event ID of its own", _once(talk.sent))
    for user in deployment.users:
        seen, history = talk.seen[user], talk.histories[user]
        found.check(f"{user} saw each message once in syncs", _same(seen, talk.sent))
        found.check(f"{user} has each message once in the history", _same(history, talk.sent))
        newest_first = list(reversed(history))
        found.check(
            f"{user} saw them in the order of the history",
            list(seen) == newest_first,
        )
        found.check(
            f"{user} got each message to the device once, in order",
            list(talk.messages[user]) == list(range(_MESSAGES)),
        )
    for what, holds in talk.data.items():
        found.check(what, holds)
    found.check("both saw them in one order", list(talk.seen[alice]) == list(talk.seen[bob]))
    found.check("/context has the event", talk.context)
    found.check("/joined_members names both", list(talk.members) == sorted(deployment.users))
    found.check("the room has its name", talk.name == "Tea")
    found.check("the room's creator has power 100", talk.power.get(alice) == 100)
    found.check("the other user saw a redaction, a new topic, and being kicked", not talk.missed)
    return found


def _talk(
    environments: ClientEnvironments, deployment: ClientDeployment, restarts: list[str]
) -> Talk:
    given = {
        "urls": deployment.urls,
        "users": list(deployment.users),
        "passwords": list(deployment.users.values()),
        "messages": _MESSAGES,
    }
    left = list(_RESTARTS)
    for line in _lines(environments, given):
        while left and line.get("sent", 0) >= left[0][0]:
            _, name, kill = left.pop(0)
            deployment.restart(name, kill=kill)
            restarts.append(f"{name} {'killed' if kill else 'ended'}")
        if "report" in line:
            return Talk(**line["report"])
    raise ProgramFailed(program="nio_program.py", status=0, reason="it reported nothing")


def _lines(environments: ClientEnvironments, given: object) -> Iterator[dict[str, Any]]:
    program = PROGRAMS / "nio_program.py"
    with subprocess.Popen(
        [environments.python, program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(json.dumps(given))
        running.stdin.close()
        try:
            for line in running.stdout:
                yield json.loads(line)
        finally:
            if running.poll() is None and running.stdout.closed:
                running.kill()
        status = running.wait()
        assert running.stderr is not None
        if status != 0:
            reason = " | ".join(running.stderr.read().strip().splitlines()[-5:])
            raise ProgramFailed(program=program.name, status=status, reason=reason)


def _once(events: Sequence[str]) -> bool:
    return max(Counter(events).values(), default=0) == 1


def _same(found: Sequence[str], wanted: Sequence[str]) -> bool:
    return _once(found) and set(found) == set(wanted)
