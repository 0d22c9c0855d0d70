"""PostgreSQL transactions in a thread pool, retried where that is safe.

``twisted.enterprise.adbapi`` is not used: it ties connections to threads, has an
unbounded queue, joins its threads without a timeout when it closes, and commits by
itself, so the outcome of a commit whose connection broke could not be looked up.
The threads come from Twisted's ``ThreadPool``.

Each *attempt* of a transaction is one job in one thread on one connection. All
waiting (for a connection, for the next attempt, for the outcome of a lost
commit) happens in the reactor, so a thread only ever runs SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import random
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.adapters.postgres.pool import ConnectionPool
from synrepl.adapters.reactor import Reactor
from synrepl.core.clock import DelayedCall
from synrepl.core.errors import Unavailable
from synrepl.core.retry import BackOff, Patience, Retry
from synrepl.driver.attempt import Attempt
from synrepl.driver.commit_status import CommitStatus, CommitTicket, look_up
from synrepl.driver.connection import DatabaseAddress, DatabaseRefused
from synrepl.storage.database import CommitUnknown, Isolation, SerializationFailure, Transaction
from synrepl.storage.store import DatabaseAway, OlderServer

T = TypeVar("T")

#: Back-off after a serialization failure, while the database is away, and while the outcome of a
#: commit is unknown.
_COLLIDED, _AWAY, _IN_DOUBT = BackOff(0.005, 0.5), BackOff(0.05, 2.0), BackOff(0.02, 1.0)


@dataclass(frozen=True, slots=True)
class DatabaseLimits:
    """Limits of a :class:`PostgresDatabase`; times are in seconds.

    :ivar connections: concurrent transactions; each has a thread and a connection
    :ivar queue: transactions that may wait for a connection
    :ivar give_up_s: how long a transaction tries to reach a database that is away,
        and how long it looks up the outcome of a lost commit
    :ivar attempts: how often a transaction is run when it has serialization failures
    :ivar idle_s: how long the server lets a transaction sit without a statement
    :ivar close_s: how long running transactions may go on while closing, before their
        connections are terminated, and how long to wait for them after that
    """

    connections: int = 8
    queue: int = 1000
    give_up_s: float = 30.0
    attempts: int = 10
    idle_s: float = 60.0
    close_s: float = 5.0


class PostgresDatabase:
    """Implements :class:`synrepl.storage.database.Database`; connects when first used.

    :param dsn: a libpq URI or key=value string; appears in no log or error
    :param instance: the process's name, which the server shows
    :raises BadDsn: ``dsn`` cannot be read
    """

    _log = Logger()

    def __init__(
        self, reactor: Reactor, dsn: str, instance: str, limits: DatabaseLimits | None = None
    ) -> None:
        self._reactor = reactor
        self._limits = limits or DatabaseLimits()
        idle_ms = str(int(self._limits.idle_s * 1000))
        self._address = DatabaseAddress(
            dsn, instance, settings={"idle_in_transaction_session_timeout": idle_ms}
        )
        self._pool = ConnectionPool(
            reactor, self._address, self._limits.connections, self._limits.queue
        )
        self._sleeps: dict[Deferred[None], DelayedCall] = {}

    @property
    def where(self) -> str:
        """Host, port, database and user, for display; without the password."""
        return self._address.where

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction; see :meth:`synrepl.storage.database.Database.run`."""
        attempt = Attempt(self._address, name, work, read_only, isolation)
        losses = self._losses(_AWAY)
        collisions = Retry(_COLLIDED, random)
        was_older = False
        while True:
            try:
                ran = await self._pool.run(attempt.run)
            except OlderServer:
                # This connection is from before a failover; a new one may reach the new server.
                self._pool.discard_idle()
                if was_older:
                    raise
                was_older = True
            except SerializationFailure as error:
                delay_s = collisions.failed()
                if (attempts := collisions.failures) >= self._limits.attempts:
                    raise type(error)(**{**error.facts, "attempts": attempts}) from error
                await self._sleep(delay_s)
            except DatabaseAway as error:
                await self._after_loss(name, error, losses)
            else:
                if ran.in_doubt is None or await self.was_committed(name, ran.in_doubt):
                    return ran.result
                await self._after_loss(name, self._address.away(ran.reason), losses)

    async def _after_loss(self, name: str, error: DatabaseAway, losses: _ConnectionLosses) -> None:
        """Pause before the next attempt.

        :raises DatabaseAway: ``error``, when another attempt is pointless
        """
        self._pool.discard_idle()
        delay_s = losses.delay_s()
        if isinstance(error, DatabaseRefused) or self._pool.closed or delay_s is None:
            raise error
        self._log.info("{name} is tried again: {error}", name=name, error=error)
        await self._sleep(delay_s)

    async def close(self) -> None:
        """Refuse new transactions, wait for running ones, terminate those that take too long."""
        closing = Deferred.fromCoroutine(self._pool.close(self._limits.close_s))
        for sleep, timer in list(self._sleeps.items()):
            timer.cancel()
            sleep.callback(None)
        await closing

    async def was_committed(self, name: str, ticket: CommitTicket) -> bool:
        """Look up the outcome of a transaction whose connection was lost during COMMIT.

        :raises CommitUnknown: the outcome cannot be looked up, or not in time
        """
        self._pool.discard_idle()  # they may lead to remains of a crashed server
        losses = self._losses(_IN_DOUBT)
        while True:
            verdict, reason = CommitStatus.PENDING, CommitStatus.PENDING.value
            try:
                verdict = await self._pool.run(partial(look_up, ticket=ticket))
                reason = verdict.value
            except Unavailable as error:
                reason = str(error)
            if verdict.is_known:
                self._log.info("{name} lost its connection: {reason}", name=name, reason=reason)
                return verdict is CommitStatus.COMMITTED
            delay_s = losses.delay_s()
            if verdict is not CommitStatus.PENDING or self._pool.closed or delay_s is None:
                raise CommitUnknown(name=name, where=self.where, xid=ticket.xid, reason=reason)
            await self._sleep(delay_s)

    def _losses(self, back_off: BackOff) -> _ConnectionLosses:
        patience = Patience(self._reactor.seconds, self._limits.give_up_s)
        return _ConnectionLosses(Retry(back_off, random), patience)

    async def _sleep(self, seconds: float) -> None:
        """Sleep; :meth:`close` ends it early."""
        if self._pool.closed:
            return
        sleep: Deferred[None] = Deferred(lambda _: timer.cancel())
        timer = self._sleeps[sleep] = self._reactor.callLater(seconds, sleep.callback, None)
        try:
            await sleep
        finally:
            del self._sleeps[sleep]


@dataclass(frozen=True, slots=True)
class _ConnectionLosses:
    """Failed attempts of one transaction, with their back-off and deadline."""

    retry: Retry
    patience: Patience

    def delay_s(self) -> float | None:
        """Count a failure; seconds until the next attempt, or None after the deadline."""
        delay_s = self.retry.failed()
        return delay_s if self.patience.allows(delay_s) else None
