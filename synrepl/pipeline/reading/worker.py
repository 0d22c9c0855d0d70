"""What a worker of Spark keeps from one task to the next.

A worker is a Python process that runs many tasks, one after the other, and ends a minute after
the last. To connect takes some 40 ms, for the driver reads the server's catalogue of types; a
collection of garbage, which Spark asks for after each task, takes 25 ms, most of it in modules.
"""

from __future__ import annotations

import gc
from functools import cache

from adbc_driver_manager import dbapi as manager
from adbc_driver_postgresql import dbapi
from pyspark import TaskContext


class Idle:
    """Connections that nobody uses just now: one at most for each conninfo, safe in any thread."""

    def __init__(self) -> None:
        self._idle: dict[str, dbapi.Connection] = {}

    def take(self, conninfo: str) -> dbapi.Connection | None:
        """One that is alive, for the caller alone; None when there is none."""
        connection = self._idle.pop(conninfo, None)
        if connection is not None and not _alive(connection):
            connection.close()
            return None
        return connection

    def keep(self, conninfo: str, connection: dbapi.Connection) -> None:
        """Keep one that is sound, and not in a transaction."""
        if self._idle.setdefault(conninfo, connection) is not connection:
            connection.close()

    def close(self) -> None:
        """End them."""
        while self._idle:
            self._idle.popitem()[1].close()


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
