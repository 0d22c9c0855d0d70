"""Runs ``synrepl watch`` and ``synrepl doctor`` beside a real server of eight processes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from interop import polling, watch_and_doctor_report
from interop.databases import Databases
from interop.environments import Environment
from interop.matrix_client import Server
from interop.observer import StoppedProcess, SynapseObserver
from interop.redis_wire import RedisWire
from interop.releases import CURRENT
from interop.report import Section
from interop.synapse import ServerDirectory
from interop.synapse_over_redis import EightProcesses
from interop.synapse_tables import SynapseTables
from interop.synrepl_watch import SynreplWatch
from interop.traffic import Traffic
from interop.watch_and_doctor_report import (
    STOPPED,
    STREAM,
    StoppedAfterCommit,
    StoppedInTransaction,
    WatchDoctorResult,
)
from synrepl.testing.redis import RedisTestServer

_SERVER = "eight.example"
_ROUNDS = 400

#: The doctor's ``--older`` while the process is stopped, in seconds.
_OLDER_S = 2.0

_ALARM_S = 30.0


def section(
    environment: Environment, databases: Databases, directory: Path, seed: int = 1
) -> Section:
    """Run the scenario; its section of the report.

    :param directory: for configurations and logs
    :param seed: of the clients' requests, and of the moments at which the process is stopped
    """
    name = databases.copy(CURRENT, "eight")
    dsn = databases.reader(name)
    server_directory = ServerDirectory(environment, directory, _SERVER, databases.arguments(name))
    with ExitStack() as stack:
        redis = RedisTestServer()
        stack.callback(redis.close)
        eight = stack.enter_context(EightProcesses(server_directory, redis.port))
        wire = stack.enter_context(RedisWire(redis.port, _SERVER))
        tables = stack.enter_context(SynapseTables(dsn))
        watch = SynreplWatch(directory, redis.port, _SERVER, dsn)
        stack.enter_context(watch.process)
        process = eight.instances[STOPPED].process
        observer = SynapseObserver(process, STOPPED, STREAM, dsn, wire, watch, tables)
        found = _play(observer, Server(eight.port, _SERVER), seed)
        eight.check_running()
    return watch_and_doctor_report.section(found)


def _play(observer: SynapseObserver, server: Server, seed: int) -> WatchDoctorResult:
    before = observer.quiet_snapshot()
    seen = len(observer.samples())
    begun = time.monotonic()
    with _busy(Traffic(server, seed, _ROUNDS, groups=False)) as (running,):
        diagnoses = [observer.doctor() for _ in iter(running.done, True)]
    seconds = time.monotonic() - begun
    after = observer.quiet_snapshot()
    samples = observer.samples()[seen:]
    chance = random.Random(seed)
    more = [Traffic(server, seed + n, None, groups=False) for n in (1, 2)]
    with _busy(*more):
        stopped_in_transaction = _stop_in_transaction(observer, chance)
        stopped_after_commit = _stop_after_commit(observer, chance)
    last = observer.quiet_snapshot()
    return WatchDoctorResult(
        before,
        after,
        last,
        _ROUNDS,
        seconds,
        server.answers,
        samples,
        diagnoses,
        stopped_in_transaction,
        stopped_after_commit,
        observer.said(),
    )


def _stop_in_transaction(observer: SynapseObserver, chance: random.Random) -> StoppedInTransaction:
    """Stop the process in a transaction that has written something."""

    def wanted(moment: StoppedProcess) -> bool:
        return bool(moment.writes) and moment.announced >= moment.committed

    with observer.stopped("in the middle of a transaction", wanted, chance):
        time.sleep(_OLDER_S + 0.5)
        oldest = observer.oldest()
        diagnosis = observer.doctor(_OLDER_S)
    observer.well()
    return StoppedInTransaction(_OLDER_S, oldest, diagnosis, observer.doctor())


def _stop_after_commit(observer: SynapseObserver, chance: random.Random) -> StoppedAfterCommit:
    """Stop the process when it has committed something that it has not announced."""

    def wanted(moment: StoppedProcess) -> bool:
        return moment.announced < moment.committed

    with observer.stopped("after a commit, with nothing announced", wanted, chance) as moment:
        begun = time.monotonic()
        alarms = polling.wait_until("an alarm", observer.alarms, _ALARM_S)
        seconds = time.monotonic() - begun
    observer.well()
    return StoppedAfterCommit(moment, alarms, seconds, observer.doctor())


@contextmanager
def _busy(*traffic: Traffic) -> Iterator[list[Future[None]]]:
    """Make requests in threads while a block runs; traffic without an end is stopped after it."""
    with ThreadPoolExecutor(len(traffic)) as pool:
        running = [pool.submit(each.run) for each in traffic]
        try:
            yield running
        finally:
            for each in traffic:
                each.stop()
        for future in running:
            future.result()
