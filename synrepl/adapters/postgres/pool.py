"""A bounded pool of connections and of the threads that use them.

A *slot* stands for one thread and one connection. Slots are acquired in the
reactor's thread; without a free slot, a job waits in a bounded queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from synrepl.adapters.reactor import Reactor
from synrepl.driver.connection import DatabaseAddress, PostgresConnection, close
from synrepl.storage.database import DatabaseBusy
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")


class DaemonThreadPool(ThreadPool):
    """Twisted's thread pool with daemon threads, which do not keep a process from ending."""

    threadFactory = staticmethod(partial(Thread, daemon=True))  # type: ignore[assignment]


class JobThread:
    """A thread that runs one job after the other.

    Twisted's ``ThreadPool`` passes a job through a lock and two queues, which costs as much as a short statement.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], object]) -> None:
        """Run a job, which must not raise, after those before it."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Wait for the jobs, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # with all that it holds, which may be a large batch


class PoolSlot:
    """One connection of the pool, and the thread that uses it, both made when they are first needed.

    :param reconnects: whether a broken connection is replaced
    """

    def __init__(self, address: DatabaseAddress, reconnects: bool) -> None:
        self._address = address
        self._may_connect = True
        self._reconnects = reconnects
        self.connection: PostgresConnection | None = None
        self._thread: JobThread | None = None
        #: Set by another thread: no further job may begin.
        self.closing = False

    def start(
        self,
        job: Callable[[PostgresConnection], T],
        finished: Callable[[T | Failure], object],
    ) -> None:
        """Run ``job`` on the connection in the thread of the slot.

        :param finished: called there with its result, or with its error
        """

        def work() -> None:
            outcome: T | Failure
            try:
                outcome = self.run(job)
            except BaseException:
                outcome = Failure()
            finished(outcome)

        if self._thread is None:
            self._thread = JobThread(f"postgres {self._address.where}")
        self._thread.run(work)

    def stop_thread(self) -> None:
        """End the thread, which has no job."""
        if self._thread is not None:
            self._thread.stop()

    def run(self, job: Callable[[PostgresConnection], T]) -> T:
        """Run ``job`` on the connection. Blocks; called in a thread.

        :raises DatabaseAway: the connection could not be made; or ``job`` raised an error
            of the driver, which means that the connection was lost
        """
        connection = self.connection
        if connection is None:
            if not self._may_connect:
                raise self._address.away("the connection was lost")
            self._may_connect = self._reconnects
            connection = self.connection = self._address.connect()
        if self.closing:
            self.discard()
            raise self._address.away("this process closes its connections")
        try:
            return job(connection)
        except psycopg2.Error as error:
            close(connection)
            raise self._address.away(error) from None
        finally:
            if not _is_idle(connection):
                self.discard()

    def discard(self) -> None:
        """Close the connection, so that the next job gets a new one."""
        if self.connection is not None:
            close(self.connection)
            self.connection = None


class ConnectionPool:
    """Runs jobs on connections.

    :param size: maximum number of concurrent jobs, threads and connections
    :param queue: maximum number of jobs that wait for a slot
    :param reconnects: whether broken connections are replaced
    :param on_idle: called in the reactor's thread each time the last running job has ended
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        address: DatabaseAddress,
        size: int,
        queue: int,
        *,
        reconnects: bool = True,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        self._reactor = reactor
        self._address = address
        self._queue = queue
        self._on_idle = on_idle
        self._slots = [PoolSlot(address, reconnects) for _ in range(size)]
        self._free = list(self._slots)
        self._waiting: deque[Deferred[PoolSlot]] = deque()
        self._idle: Deferred[None] | None = None
        #: True once :meth:`close` has been called.
        self.closed = False

    async def run(self, job: Callable[[PostgresConnection], T]) -> T:
        """Run ``job`` in a thread, once a slot is free.

        Cancelling ends the wait for a slot; a job that has begun runs to completion.

        :raises DatabaseBusy: the queue is full
        :raises DatabaseAway: no connection could be made, or the pool is closed
        """
        slot = await self._acquire()
        result: Deferred[T] = Deferred()

        def finished(outcome: T | Failure) -> None:
            self._release(slot)
            result.callback(outcome)  # a failure calls the errback

        slot.start(job, partial(self._reactor.callFromThread, finished))
        return await result

    def discard_idle(self) -> None:
        """Close unused connections: a connection was just lost, so they are probably broken too."""
        for slot in self._free:
            slot.discard()

    async def close(self, patience_s: float) -> None:
        """Fail queued jobs, wait for running ones, and stop the threads.

        :param patience_s: how long jobs may go on before their backends are terminated,
            and how long after that until they are abandoned
        """
        if self.closed:
            return
        self.closed = True
        while self._waiting:
            self._waiting.popleft().errback(self._closed_error())
        if not await self._all_idle(patience_s):
            self._end_backends()
            if not await self._all_idle(patience_s):
                self._log.error(
                    "{running} jobs on {where} could not be ended and are left behind",
                    running=len(self._slots) - len(self._free),
                    where=self._address.where,
                )
                return
        self.discard_idle()
        for slot in self._slots:
            slot.stop_thread()

    async def _acquire(self) -> PoolSlot:
        if self.closed:
            raise self._closed_error()
        if self._free:
            return self._free.pop()
        if len(self._waiting) >= self._queue:
            raise DatabaseBusy(
                waiting=len(self._waiting),
                connections=len(self._slots),
                where=self._address.where,
            )
        turn: Deferred[PoolSlot] = Deferred(self._waiting.remove)
        self._waiting.append(turn)
        return await turn

    def _release(self, slot: PoolSlot) -> None:
        if self._waiting:
            self._waiting.popleft().callback(slot)
            return
        self._free.append(slot)
        if len(self._free) < len(self._slots):
            return
        self._on_idle()
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.callback(None)

    async def _all_idle(self, patience_s: float) -> bool:
        if len(self._free) == len(self._slots):
            return True
        self._idle = Deferred()
        timer = self._reactor.callLater(patience_s, self._idle.cancel)
        try:
            await self._idle
        except Exception:
            return False
        timer.cancel()
        return True

    def _end_backends(self) -> None:
        """Have the server terminate the backends of the connections in use.

        This takes a new connection in a new thread. The driver's ``cancel()`` would hold
        Python's global lock, and thus block the whole process, while it waits for the server.
        """
        pids = []
        for slot in self._slots:
            slot.closing = True  # first, so that a connection that is being made is not missed
            connection = slot.connection  # read once: its thread may be discarding it
            if connection is not None and slot not in self._free:
                pids.append(connection.info.backend_pid)
        Thread(target=_terminate, args=(self._address, pids), daemon=True).start()

    def _closed_error(self) -> Exception:
        return self._address.away("this process has closed its connections")


def _is_idle(connection: PostgresConnection) -> bool:
    status = connection.info.transaction_status
    return not connection.closed and status == extensions.TRANSACTION_STATUS_IDLE


def _terminate(address: DatabaseAddress, pids: list[int]) -> None:
    with suppress(psycopg2.Error, DatabaseAway):
        connection = address.connect()
        try:
            with connection.cursor() as cursor:
                # After a failover, the PID may be that of another client's backend.
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY(%s)"
                    " AND application_name = current_setting('application_name')",
                    (pids,),
                )
        finally:
            close(connection)
