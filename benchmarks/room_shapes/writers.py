"""Several processes that store rooms in the same tables at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from time import perf_counter

import psycopg2

from benchmarks.room_shapes.histories import history_of, linear
from benchmarks.room_shapes.measure import fill
from benchmarks.room_shapes.shape import Shape

_BATCH = 100


def rates(
    dsn: str, make: Callable[[int], Shape], counts: Sequence[int], members: int, events: int
) -> dict[int, float]:
    """State events a second, by the number of writers, each with a room of its own."""
    found = {}
    for count in counts:
        found[count] = _rate(dsn, make, count, members, events)
    return found


def _rate(dsn: str, make: Callable[[int], Shape], count: int, members: int, events: int) -> float:
    context = get_context("fork")
    barrier = context.Barrier(count + 1)
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        make(0).create(cursor)
    work = partial(_write, dsn, make, members, events, barrier)
    writers = [context.Process(target=work, args=(room,)) for room in range(1, count + 1)]
    for writer in writers:
        writer.start()
    barrier.wait()
    began = perf_counter()
    for writer in writers:
        writer.join()
    took = perf_counter() - began
    assert all(writer.exitcode == 0 for writer in writers)
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        for table in make(0).tables:
            cursor.execute(f"DROP TABLE {table}")
    return count * events / took


def _write(
    dsn: str,
    make: Callable[[int], Shape],
    members: int,
    events: int,
    barrier: Barrier,
    room: int,
) -> None:
    history = history_of(f"writer {room}", linear(members, events), room, 64)
    with closing(psycopg2.connect(dsn)) as connection:
        barrier.wait()
        fill(connection, [(make(room), history)], _BATCH)
