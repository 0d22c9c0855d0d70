"""The latency of ``/health`` while a master's listeners are under attack.

Each attack has its own master, with Redis, and runs in another process. A third process requests
``/health`` from before the attack until some seconds after it; a fourth one requests it from an idle
master, which shows what the machine contributes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.running_master import RunningMaster
from synrepl.testing.redis import RedisTestServer

#: Maximum latency, in milliseconds.
BOUND_MS = 100.0

#: The latency counted for an unanswered request, in milliseconds.
UNANSWERED_MS = 60_000.0

#: Seconds of observation of an idle master, and after an attack.
QUIET_S, AFTER_S = 5.0, 3.0


class Attack(NamedTuple):
    """One row.

    :ivar kind: see :mod:`benchmarks.health_attack`
    :ivar amount: of a full run
    :ivar descriptors: file descriptor limit of the master; None for no limit
    """

    name: str
    kind: str
    amount: int
    descriptors: int | None = None


ATTACKS = (
    Attack("35,000 USER_SYNC, each of a new instance", "new_instances", 35_000),
    Attack("300,000 users sync through a connection that closes", "leaving_users", 300_000),
    Attack("30,000 REPLICATE", "replicate", 30_000),
    Attack("30,000 REPLICATE of a legacy client", "replicate_legacy", 30_000),
    Attack("200,000 FEDERATION_ACK, each of a new instance", "federation_acks", 200_000),
    Attack("5,000 REMOTE_SERVER_UP with 200 others connected", "servers_up", 5_000),
    Attack("10,000 idle TCP connections, 256 descriptors", "idle", 10_000, 256),
    Attack("1,000 slow HTTP connections", "slow", 1_000),
    Attack("1,000 slow HTTP connections, 256 descriptors", "slow", 1_000, 256),
    Attack("100 unfinished POSTs", "unfinished", 100),
    Attack("200 appends at a time", "appends", 10),
    Attack("requests for another host", "foreign_host", 1_000),
)


def run(scale: Scale) -> Iterator[Row]:
    """An idle master, then each attack."""
    with postgres() as dsn, TemporaryDirectory(prefix="synrepl-health-") as name:
        redis = RedisTestServer()
        try:
            yield from _rows(dsn, Path(name), redis, scale)
        finally:
            redis.close()


def _rows(dsn: str, directory: Path, redis: RedisTestServer, scale: Scale) -> Iterator[Row]:
    for part in ("idle", "attacked"):
        (directory / part).mkdir()
    more = {"redis": {"path": str(redis.path)}, "catalogue": "all"}
    # On another database, because each has one master.
    with postgres() as other, RunningMaster(other, directory / "idle") as idle:
        for attack in (None, *ATTACKS):
            descriptors = None if attack is None else attack.descriptors
            with RunningMaster(dsn, directory / "attacked", more, descriptors) as master:
                yield _row(attack, _watched(master, idle, attack, scale))


def _watched(
    master: RunningMaster, idle: RunningMaster, attack: Attack | None, scale: Scale
) -> dict[str, Any]:
    """The latencies of ``/health`` of both masters, the outcome of an attack on one, and its memory."""
    before = master.memory()
    with (
        Child("health_probe", master.http_port, "/health") as probe,
        Child("health_probe", idle.http_port, "/health") as beside,
    ):
        probe.receive()
        beside.receive()
        outcome: Mapping[str, Any] = {}
        began = time.perf_counter()
        if attack is None:
            time.sleep(QUIET_S)
        else:
            ports = master.port, master.http_port
            with Child("health_attack", attack.kind, *ports, scale.of(attack.amount)) as attacker:
                outcome = attacker.receive()
        took = time.perf_counter() - began
        time.sleep(AFTER_S)
        found = [each.receive() for each in (probe, beside) if each.resume() is None]
    return {
        **found[0],
        "beside": found[1]["took"],
        "outcome": outcome,
        "seconds": took,
        "grown": (master.peak() - before) / 2**20,
    }


def _row(attack: Attack | None, found: Mapping[str, Any]) -> Row:
    """The slowest answer, with details; an unanswered request counts as :data:`UNANSWERED_MS`."""
    took, beside = (sorted(s * 1000 for s in found[name]) for name in ("took", "beside"))
    slowest = UNANSWERED_MS if found["failures"] else took[-1]
    details = [
        f"median {median(took):.1f} ms",
        f"idle master meanwhile {median(beside):.1f} ms, at most {beside[-1]:.1f} ms",
        f"{len(took):,} answers" + f", {found['failures']} missing" * bool(found["failures"]),
        f"{found['grown']:.0f} MiB more memory",
    ]
    if attack is not None:
        details.append(f"attack took {found['seconds']:.1f} s")
    details += [f"{key}: {_shown(value)}" for key, value in found["outcome"].items() if value]
    return Row(
        "nothing" if attack is None else attack.name,
        slowest,
        "ms",
        at_most(BOUND_MS),
        (took[0], took[-1]),
        "; ".join(details),
        {"median": median(took), "failures": found["failures"], "idle": beside[-1]},
    )


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{count:,} × {name}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
