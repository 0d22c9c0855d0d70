"""LISTEN on a dedicated connection that reconnects by itself.

Notifications are hints: those sent while the connection is down are lost. So the
owner is also called after each new connection, and then polls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import random
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.adapters.postgres.pool import DaemonThreadPool
from synrepl.adapters.postgres.socket_watcher import SocketWatcher
from synrepl.adapters.reactor import Reactor
from synrepl.core.clock import DelayedCall
from synrepl.core.retry import BackOff, Retry
from synrepl.driver.connection import DatabaseAddress, Keepalive, PostgresConnection, close

_KEEPALIVE = Keepalive(idle_s=5, interval_s=2, count=3)

_BACK_OFF = BackOff(0.05, 5.0)


class PostgresListener:
    """Listens on channels from :meth:`start` to :meth:`stop`.

    :param dsn: a libpq URI or key=value string
    :param instance: the process's name, which the server shows
    :param on_notify: called with channel and payload
    :param on_reconnect: called whenever LISTEN has taken effect, including the first
        time: earlier notifications may have been missed
    :raises BadDsn: ``dsn`` cannot be read
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        dsn: str,
        instance: str,
        channels: Sequence[str],
        on_notify: Callable[[str, str], object],
        on_reconnect: Callable[[], object],
    ) -> None:
        self._reactor = reactor
        self._address = DatabaseAddress(
            dsn, instance, keepalive=_KEEPALIVE, settings={"idle_session_timeout": "0"}
        )
        self._channels = tuple(channels)
        self._on_notify = on_notify
        self._on_reconnect = on_reconnect
        self._threads = DaemonThreadPool(0, 1, name="postgres listener")
        self._connection: PostgresConnection | None = None
        self._watch: SocketWatcher | None = None
        self._connecting = False
        self._stopped: Deferred[None] | None = None
        self._retry = Retry(_BACK_OFF, random)
        self._next_attempt: DelayedCall | None = None

    def start(self) -> None:
        """Begin to connect; retries until :meth:`stop`. To be called once."""
        self._threads.start()
        self._connect()

    async def stop(self) -> None:
        """Stop listening; waits for a running attempt to connect, which has a timeout."""
        if self._stopped is not None:
            return
        self._stopped = Deferred()
        if self._next_attempt is not None and self._next_attempt.active():
            self._next_attempt.cancel()
        self._drop()
        if self._connecting:
            await self._stopped
        self._threads.stop()

    def _connect(self) -> None:
        self._connecting = True
        self._threads.callInThreadWithCallback(
            partial(self._reactor.callFromThread, self._connected), self._open
        )

    def _open(self) -> PostgresConnection:
        """Connect and listen; runs in a thread."""
        connection = self._address.connect()
        try:
            with connection.cursor() as cursor:
                for channel in self._channels:
                    cursor.execute(f"LISTEN {extensions.quote_ident(channel, connection)}")
        except psycopg2.Error as error:
            close(connection)
            raise self._address.away(error) from None
        return connection

    def _connected(self, ok: bool, outcome: Any) -> None:
        self._connecting = False
        if self._stopped is not None:
            if ok:
                close(outcome)
            self._stopped.callback(None)
        elif ok:
            self._retry.succeeded()
            self._connection = outcome
            self._watch = SocketWatcher(self._reactor, outcome, partial(self._readable, outcome))
            self._watch.resume()
            self._call(self._on_reconnect)
            self._deliver(outcome)
        else:
            self._try_again(outcome.getErrorMessage())

    def _readable(self, connection: PostgresConnection) -> None:
        try:
            connection.poll()
        except psycopg2.Error as error:
            self._drop()
            self._try_again(self._address.redacted(error))
        else:
            self._deliver(connection)

    def _deliver(self, connection: PostgresConnection) -> None:
        notifications = connection.notifies[:]
        del connection.notifies[:]
        for notification in notifications:
            self._call(self._on_notify, notification.channel, notification.payload)

    def _call(self, call: Callable[..., object], *args: object) -> None:
        try:
            call(*args)
        except Exception:
            self._log.failure("handling a notification failed")

    def _drop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    def _try_again(self, reason: str) -> None:
        self._log.warn("not listening to notifications: {reason}", reason=reason)
        self._next_attempt = self._reactor.callLater(self._retry.failed(), self._connect)
