"""Embedded PostgreSQL: started, watched, restarted and stopped with this process.

Blocking calls run in one dedicated thread, which lives as long as the server
(:mod:`synrepl.storage.launch.guard` says why it must).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import random
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.adapters.postgres.pool import DaemonThreadPool
from synrepl.adapters.reactor import Reactor
from synrepl.core.clock import DelayedCall
from synrepl.core.errors import SynreplError
from synrepl.core.retry import BackOff, Retry
from synrepl.storage.launch.postgres import PostgresServer

T = TypeVar("T")

_BACK_OFF = BackOff(0.2, 30.0)


class EmbeddedPostgres:
    """A PostgreSQL server that belongs to this process.

    :param data_dir: its directory; see :mod:`synrepl.storage.launch.postgres`
    :param port: port on 127.0.0.1; 0 for a free one
    :param prefer_system: run an installed PostgreSQL rather than the pip package's
    :param fsync: False risks the data when the machine crashes
    :param on_crash: called with the reason when the server ended unexpectedly, before the restart
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        data_dir: Path,
        *,
        port: int = 0,
        prefer_system: bool = False,
        fsync: bool = True,
        on_crash: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._reactor = reactor
        self._server = PostgresServer(data_dir, port=port, prefer_system=prefer_system, fsync=fsync)
        self._on_crash = on_crash
        self._thread = DaemonThreadPool(1, 1, name="embedded postgres")
        self._stopping = False
        self._retry = Retry(_BACK_OFF, random)
        self._next_attempt: DelayedCall | None = None

    @property
    def pid(self) -> int | None:
        """The server's process ID; None while it does not run."""
        child = self._server.child
        return None if child is None else child.pid

    async def start(self) -> str:
        """Start it, and keep it running until :meth:`stop`. To be called once.

        :returns: the DSN, with the password; a restart does not change it
        :raises ConfigError: the operator has to correct something; see the errors of
            :mod:`synrepl.storage.launch.postgres` and :mod:`synrepl.storage.launch.postgres_binaries`
        :raises DataDirTaken: another process runs a server in the directory
        :raises StartFailed: the server did not start
        """
        self._thread.start()
        try:
            dsn = await self._run_in_thread(self._server.start)
        except BaseException:
            self._stopping = True
            self._thread.stop()
            raise
        self._watch()
        return dsn

    async def stop(self) -> None:
        """Shut the server down, and wait until it has ended; its connections are closed."""
        if self._stopping:
            return
        self._stopping = True
        if self._next_attempt is not None and self._next_attempt.active():
            self._next_attempt.cancel()
        self._reactor.removeReader(self)
        await self._run_in_thread(self._server.stop)
        self._thread.stop()

    def fileno(self) -> int:
        """``IReadDescriptor``: readable when the server has ended."""
        child = self._server.child
        return -1 if child is None else child.fileno()

    def doRead(self) -> None:
        """``IReadDescriptor``: the server has ended."""
        self._ended()

    def connectionLost(self, reason: object) -> None:
        """``IReadDescriptor``: called instead of :meth:`doRead` at an end of file."""
        self._ended()

    def logPrefix(self) -> str:
        """``ILoggingContext``: a name for logs."""
        return "embedded postgres"

    def _watch(self) -> None:
        if not self._stopping:
            self._reactor.addReader(self)

    def _ended(self) -> None:
        """Report a server that ended unexpectedly, and restart it."""
        self._reactor.removeReader(self)
        child = self._server.child
        if self._stopping or child is None or not child.gone():
            return
        reason = f"{child.status()}; its log ends: {self._server.log_tail()}"
        self._log.error("the embedded PostgreSQL ended: {reason}", reason=reason)
        try:
            self._on_crash(reason)
        except Exception:
            self._log.failure("the crash callback of the embedded PostgreSQL failed")
        self._restart()

    def _restart(self) -> None:
        if self._stopping:  # on_crash may have called stop()
            return
        self._run_in_thread(self._server.restart).addCallbacks(self._restarted, self._not_restarted)

    def _restarted(self, _: object) -> None:
        self._retry.succeeded()
        self._log.info("the embedded PostgreSQL runs again")
        self._watch()

    def _not_restarted(self, failure: Any) -> None:
        failure.trap(SynreplError, OSError)
        self._log.error("{reason}", reason=failure.getErrorMessage())
        if not self._stopping:
            self._next_attempt = self._reactor.callLater(self._retry.failed(), self._restart)

    def _run_in_thread(self, job: Callable[[], T]) -> Deferred[T]:
        """Run a blocking job in the dedicated thread, after earlier ones."""
        result: Deferred[T] = Deferred()

        def finished(ok: bool, outcome: Any) -> None:
            (result.callback if ok else result.errback)(outcome)

        self._thread.callInThreadWithCallback(partial(self._reactor.callFromThread, finished), job)
        return result
