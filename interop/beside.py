"""``synrepl watch`` and ``synrepl doctor`` beside a real server of eight processes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from interop import beside_report, waiting
from interop.beside_report import STOPPED, STREAM, Beside, Held, Silent
from interop.databases import Databases
from interop.environments import Environment
from interop.matrix_client import Server
from interop.our_watch import OurWatch
from interop.redis_wire import RedisWire
from interop.releases import CURRENT
from interop.report import Section
from interop.scene import Moment, Scene
from interop.synapse import Home
from interop.synapse_over_redis import EightProcesses
from interop.synapse_tables import SynapseTables
from interop.traffic import Traffic
from synrepl.testing.redis import RedisTestServer

_SERVER = "eight.example"
_ROUNDS = 400

#: From which age on a transaction is told of while it is stopped.
_OLDER_S = 2.0

_ALARM_S = 30.0


def section(
    environment: Environment, databases: Databases, directory: Path, seed: int = 1
) -> Section:
    """Let ours stand beside theirs; what was found.

    :param directory: for configurations and logs
    :param seed: of what clients do, and of when the process is stopped
    """
    name = databases.copy(CURRENT, "eight")
    dsn = databases.reader(name)
    home = Home(environment, directory, _SERVER, databases.arguments(name))
    with ExitStack() as stack:
        redis = RedisTestServer()
        stack.callback(redis.close)
        eight = stack.enter_context(EightProcesses(home, redis.port))
        wire = stack.enter_context(RedisWire(redis.port, _SERVER))
        tables = stack.enter_context(SynapseTables(dsn))
        watch = OurWatch(directory, redis.port, _SERVER, dsn)
        stack.enter_context(watch.process)
        process = eight.instances[STOPPED].process
        scene = Scene(process, STOPPED, STREAM, dsn, wire, watch, tables)
        found = _play(scene, Server(eight.port, _SERVER), seed)
        eight.still_run()
    return beside_report.section(found)


def _play(scene: Scene, server: Server, seed: int) -> Beside:
    before = scene.calm()
    seen = len(scene.looks())
    begun = time.monotonic()
    with _busy(Traffic(server, seed, _ROUNDS, groups=False)) as (going,):
        asked = [scene.doctor() for _ in iter(going.done, True)]
    seconds = time.monotonic() - begun
    after = scene.calm()
    looks = scene.looks()[seen:]
    chance = random.Random(seed)
    more = [Traffic(server, seed + n, None, groups=False) for n in (1, 2)]
    with _busy(*more):
        held = _held(scene, chance)
        silent = _silent(scene, chance)
    last = scene.calm()
    return Beside(
        before,
        after,
        last,
        _ROUNDS,
        seconds,
        server.answers,
        looks,
        asked,
        held,
        silent,
        scene.said(),
    )


def _held(scene: Scene, chance: random.Random) -> Held:
    """Stop it in the middle of a transaction that has written something."""

    def wanted(moment: Moment) -> bool:
        return bool(moment.writes) and moment.announced >= moment.committed

    with scene.stopped("in the middle of a transaction", wanted, chance):
        time.sleep(_OLDER_S + 0.5)
        oldest = scene.oldest()
        diagnosis = scene.doctor(_OLDER_S)
    scene.well()
    return Held(_OLDER_S, oldest, diagnosis, scene.doctor())


def _silent(scene: Scene, chance: random.Random) -> Silent:
    """Stop it when it has committed something that it has not announced."""

    def wanted(moment: Moment) -> bool:
        return moment.announced < moment.committed

    with scene.stopped("after a commit, with nothing announced", wanted, chance) as moment:
        begun = time.monotonic()
        alarms = waiting.until("an alarm", scene.alarms, _ALARM_S)
        seconds = time.monotonic() - begun
    scene.well()
    return Silent(moment, alarms, seconds, scene.doctor())


@contextmanager
def _busy(*traffic: Traffic) -> Iterator[list[Future[None]]]:
    """While a block runs, clients do things; those that have no end are told to stop after it."""
    with ThreadPoolExecutor(len(traffic)) as pool:
        going = [pool.submit(each.run) for each in traffic]
        try:
            yield going
        finally:
            for each in traffic:
                each.stop()
        for future in going:
            future.result()
