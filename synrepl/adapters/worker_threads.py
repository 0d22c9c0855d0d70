"""Threads for work that takes long and waits for nothing, such as signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.threads import deferToThreadPool

from synrepl.adapters.postgres.pool import DaemonThreadPool

T = TypeVar("T")


class WorkerThreads:
    """A pool of threads, which are started when they are needed; implements ``RunsInThreads`` of the services.

    :param reactor: gets the results, in its own thread
    :param concurrency: maximum number of threads
    """

    def __init__(self, reactor: Any, name: str, concurrency: int) -> None:
        self.concurrency = concurrency
        self._reactor = reactor
        self._pool = DaemonThreadPool(0, concurrency, name)
        self._pool.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread, and return its result, or raise its error."""
        return await deferToThreadPool(self._reactor, self._pool, work)

    def stop(self) -> None:
        """Wait for what runs, and end the threads."""
        self._pool.stop()
