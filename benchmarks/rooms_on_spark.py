"""Jobs over rooms on Spark: their rates on one core and on two, against the pure rules.

A Synapse's database has one room, read in place and cut into parts. The pure rules judge the same events in this process, from
bytes in memory to states. Spark's rates are wall time, from the database to a sink that drops the rows, after each job
has run on another, small room, so that the session and its Python workers have started.

With one task at a time, PostgreSQL and the JVM still have the other core. What a second core brings is therefore also
measured against a run in which all processes, the server of the database among them, have one core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from statistics import mean

import psycopg2
from psycopg2.extensions import make_dsn
from pyspark.sql import DataFrame

from benchmarks.child import REPOSITORY
from benchmarks.database import postgres_server
from benchmarks.harness import Row, Scale, at_least, at_most, cpu
from benchmarks.process_tree import descendants, peak_mib
from benchmarks.synapse_room import fill
from synrepl.pipeline.rooms import state_at_every_event, verify
from synrepl.pipeline.rooms.reading.open import open_rooms
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.rooms import Room, parse_event, room_version

#: Events of the room, unless ``--events`` says otherwise, and of those, how many the pure rules judge.
_EVENTS, _LARGE_EVENTS, _PURE = 90_000, 500_000, 20_000

#: Events of the room on which jobs run first.
_WARM_UP_EVENTS = 10_000

_Job = Callable[[RoomFrames], DataFrame]

#: Name of the peak among the rates.
_MEMORY = "memory of a task"

_STATES, _VERIFY = "state at every event", "verify, without signatures"

#: By name of the job: the parts of a run.
_JOBS: dict[str, _Job] = {
    _STATES: state_at_every_event.state_at_every_event,
    _VERIFY: verify.verify_rooms,
}


def run(scale: Scale, events: int | None = None) -> Iterator[Row]:
    """Run the jobs on one room.

    :param events: number of its events
    """
    wanted = scale.of(_EVENTS) if events is None else events
    rates = yield from _states(wanted, _JOBS, 1.7)
    verified = {cores: rates[cores][_VERIFY] for cores in (1, 2)}
    yield Row(
        "verify, without signatures, one core",
        verified[1],
        "events a second",
        at_least(10_000),
        detail=f"{verified[2]:,.0f} on two cores",
        numbers={"one": verified[1]},
    )


def run_large(scale: Scale, events: int | None = None) -> Iterator[Row]:
    """Compute the states of one large room.

    :param events: number of its events
    """
    yield from _states(scale.of(_LARGE_EVENTS) if events is None else events, [_STATES], 1.6)


def _states(
    events: int, jobs: Collection[str], speed_up: float
) -> Generator[Row, None, dict[int, dict[str, float]]]:
    """Run jobs on one room, and say how fast its states were computed; the rates of each number of cores.

    :param speed_up: how many times as fast two cores have to be as all on one
    """
    with postgres_server() as server:
        dsn = server.dsn
        fill(dsn, events)
        small = _another_database(dsn)
        fill(small, _WARM_UP_EVENTS)
        pure = [_pure_rate(dsn)]
        rates = {1: _rates(dsn, small, events, 1, jobs)}
        # The machine may have become faster or slower meanwhile.
        pure.append(_pure_rate(dsn))
        rates[2] = _rates(dsn, small, events, 2, jobs)
        with _on_one_core():
            alone = _rates(dsn, small, events, 1, [_STATES])[_STATES]
    one, two, rules = rates[1][_STATES], rates[2][_STATES], mean(pure)
    yield Row(
        "state at every event, one core",
        one / rules,
        "× the pure rules",
        at_least(0.7),
        detail=f"{one:,.0f} against {rules:,.0f} events a second, {events:,} events",
        numbers={"pure": rules, "one": one},
    )
    yield Row(
        "state at every event, two cores",
        two / alone,
        "× all on one core",
        at_least(speed_up),
        detail=f"{two:,.0f} against {alone:,.0f} events a second, one room of {events:,} events",
        numbers={"one": alone, "two": two},
    )
    yield Row(
        "state at every event, two tasks at a time",
        two / one,
        "× one task",
        detail=f"{two:,.0f} against {one:,.0f} events a second, PostgreSQL on the same two cores",
    )
    yield Row(
        "memory of a task",
        max(each[_MEMORY] for each in rates.values()),
        "MiB",
        at_most(400),
        detail="peak of the largest Python worker",
    )
    return rates


def _pure_rate(dsn: str) -> float:
    """Events that the pure rules judge in a second of CPU."""
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT json FROM events JOIN event_json USING (event_id)"
            " ORDER BY topological_ordering LIMIT %s",
            (_PURE,),
        )
        raws = [text.encode() for (text,) in cursor.fetchall()]
    connection.close()
    version = room_version("10")
    room = Room(version)

    def judge() -> None:
        for raw in raws:
            room.receive(parse_event(raw, version), live=False)

    return len(raws) / cpu(judge)


def _another_database(dsn: str) -> str:
    """An empty database on the same server."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("CREATE DATABASE small")
    return make_dsn(dsn, dbname="small")


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Give this process, what it starts, and what it has started, the first core alone."""
    cores = os.sched_getaffinity(0)
    _move({min(cores)})
    try:
        yield
    finally:
        _move(cores)


def _move(cores: set[int]) -> None:
    for pid in (os.getpid(), *descendants(os.getpid(), "")):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(pid, cores)


def _rates(
    dsn: str, small: str, events: int, cores: int, names: Collection[str]
) -> dict[str, float]:
    """Events a second of some jobs, and the peak of the memory of a Python worker.

    :param small: the database on which the jobs run first
    """
    jobs = {name: _JOBS[name] for name in names}
    options = SessionOptions(
        master=f"local[{cores}]", driver_memory="1g", python_path=(REPOSITORY,)
    )
    with open_session(options) as spark:
        with open_rooms(spark, small) as frames:
            for job in jobs.values():
                _seconds(job, frames)
        with open_rooms(spark, dsn) as frames:
            found = {name: events / _seconds(job, frames) for name, job in jobs.items()}
        workers = descendants(os.getpid(), "python")
        return found | {_MEMORY: max(map(peak_mib, workers))}


def _seconds(job: _Job, frames: RoomFrames) -> float:
    begun = time.perf_counter()
    job(frames).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun
