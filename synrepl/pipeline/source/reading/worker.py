"""What a worker of Spark keeps from one task to the next.

A worker is a Python process that runs many tasks, one after the other, and ends a minute after
the last. To connect takes some 40 ms, for the driver reads the server's catalogue of types; a
collection of garbage, which Spark asks for after each task, takes 25 ms, most of it in modules.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from adbc_driver_manager import dbapi as manager
from adbc_driver_postgresql import dbapi
from pyspark import TaskContext


class Idle:
    """The connection that was used last, while nobody uses it; safe in any thread."""

    def __init__(self) -> None:
        self._idle: list[tuple[str, dbapi.Connection]] = []  # one at most

    def take(self, conninfo: str) -> dbapi.Connection | None:
        """It, for the caller alone, if it leads there and is alive; else it is closed."""
        for where, connection in self._emptied():
            if where == conninfo and _alive(connection):
                return connection
            connection.close()
        return None

    def keep(self, conninfo: str, connection: dbapi.Connection) -> None:
        """Keep one that is sound, and not in a transaction, in the place of what was kept before."""
        self.close()
        self._idle.append((conninfo, connection))

    def close(self) -> None:
        """End it."""
        for _, connection in self._emptied():
            connection.close()

    def _emptied(self) -> Iterator[tuple[str, dbapi.Connection]]:
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                yield self._idle.pop()


def kept() -> Idle | None:
    """What this process keeps, if it is running a task of Spark."""
    return None if TaskContext.get() is None else _kept()


@cache
def _kept() -> Idle:
    # What is there by now, modules above all, is never looked through again.
    gc.collect()
    gc.freeze()
    return Idle()


def _alive(connection: dbapi.Connection) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return cursor.fetchone() is not None
    except manager.Error:
        return False
