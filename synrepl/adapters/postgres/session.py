"""A connection held open for session-level locks, whose loss is noticed promptly.

While a job runs, its thread reads the socket. Otherwise the reactor watches it:
the only thing that arrives on an idle connection is its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psycopg2
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from synrepl.adapters.postgres.pool import ConnectionPool
from synrepl.adapters.postgres.socket_watcher import SocketWatcher
from synrepl.adapters.reactor import Reactor
from synrepl.driver.attempt import Attempt, AttemptResult
from synrepl.driver.connection import DatabaseAddress, Keepalive, PostgresConnection
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")

#: Both ends notice a silent loss within seconds: the server releases the locks, and the
#: owner stops relying on them.
_KEEPALIVE = Keepalive(idle_s=2, interval_s=1, count=3)

_QUEUE = 1000
_CLOSE_S = 5.0

_SETTINGS = {
    "tcp_keepalives_idle": str(_KEEPALIVE.idle_s),
    "tcp_keepalives_interval": str(_KEEPALIVE.interval_s),
    "tcp_keepalives_count": str(_KEEPALIVE.count),
    "tcp_user_timeout": str(_KEEPALIVE.total_s * 1000),
    "client_connection_check_interval": "1000",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "60000",
}


class PostgresSession:
    """Implements :class:`synrepl.storage.database.DatabaseSession`; made by :func:`open_session`."""

    _log = Logger()

    def __init__(self, reactor: Reactor, address: DatabaseAddress) -> None:
        self._reactor = reactor
        self._address = address
        self._pool = ConnectionPool(
            reactor, address, 1, _QUEUE, reconnects=False, on_idle=self._idle
        )
        self._connection: PostgresConnection | None = None
        self._watch: SocketWatcher | None = None
        self._failure = ""  # reason given by the last job that lost the connection
        self._lost: str | None = None
        self._on_lost: list[Callable[[str], object]] = []

    @property
    def backend_pid(self) -> int:
        """The PID of this session's backend; 0 once the session is over."""
        connection = self._connection
        return 0 if connection is None or connection.closed else connection.info.backend_pid

    async def open(self) -> None:
        """Connect; to be called once, before anything else.

        :raises DatabaseAway: it cannot be reached
        """

        def hold(connection: PostgresConnection) -> None:
            self._connection = connection

        try:
            await self._pool.run(hold)
        except BaseException:
            await self.close()
            raise
        assert self._connection is not None
        self._watch = SocketWatcher(self._reactor, self._connection, self._readable)
        self._watch.resume()

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Have ``call(reason)`` called once when the connection is lost."""
        if self._lost is None:
            self._on_lost.append(call)
        else:
            call(self._lost)

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in one transaction, after those requested earlier."""
        if self._lost is not None:
            raise self._address.away(self._lost)
        attempt = Attempt(self._address, "session", work, False, Isolation.READ_COMMITTED)

        def job(connection: PostgresConnection) -> AttemptResult[T]:
            try:
                ran = attempt.run(connection)
            except DatabaseAway as error:
                self._failure = str(error.facts["reason"])
                raise
            self._failure = ran.reason
            return ran

        assert self._watch is not None, "open() comes first"
        self._watch.pause()
        ran = await self._pool.run(job)
        if ran.in_doubt is not None:
            raise self._address.away(ran.reason)
        return ran.result

    async def close(self, last: Callable[[Transaction], object] | None = None) -> None:
        """Close the connection, which releases the locks; waits a few seconds for running jobs.

        :param last: a transaction to run before that
        :raises DatabaseAway: ``last`` could not be run; the connection is closed all the same
        """
        try:
            if last is not None:
                await self._run_with_timeout(last)
        finally:
            if self._watch is not None:
                self._watch.close()
            await self._pool.close(_CLOSE_S)

    async def _run_with_timeout(self, work: Callable[[Transaction], object]) -> None:
        running = Deferred.fromCoroutine(self.run(work))
        timer = self._reactor.callLater(_CLOSE_S, running.cancel)
        try:
            await running
        except CancelledError:
            raise self._address.away("it does not answer") from None
        finally:
            if timer.active():
                timer.cancel()

    def _readable(self) -> None:
        """Check whether what arrived on the idle connection is its end."""
        assert self._connection is not None
        try:
            self._connection.poll()
        except psycopg2.Error as error:
            self._lose(self._address.redacted(error))

    def _idle(self) -> None:
        """Watch the connection again, unless the last job lost it."""
        if self._pool.closed or self._connection is None or self._watch is None:
            return
        if self._connection.closed:
            self._lose(self._failure)
        else:
            self._watch.resume()

    def _lose(self, reason: str) -> None:
        if self._lost is not None or self._pool.closed or self._watch is None:
            return
        self._lost = reason
        self._watch.close()
        self._pool.discard_idle()
        calls, self._on_lost = self._on_lost, []
        for call in calls:
            try:
                call(reason)
            except Exception:
                self._log.failure("a callback for the loss of a session failed")


async def open_session(reactor: Reactor, dsn: str, instance: str) -> PostgresSession:
    """Open a connection for session-level locks.

    :param dsn: a libpq URI or key=value string
    :param instance: the process's name, which the server shows
    :raises DatabaseAway: the database cannot be reached; there is no retry
    :raises BadDsn: ``dsn`` cannot be read
    """
    address = DatabaseAddress(dsn, instance, keepalive=_KEEPALIVE, settings=_SETTINGS)
    session = PostgresSession(reactor, address)
    await session.open()
    return session
