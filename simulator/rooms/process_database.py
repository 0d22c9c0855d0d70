"""The database as one simulated process sees it: with delays, and interrupted where the seed says so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from twisted.internet.defer import Deferred

from simulator.clock import Process
from simulator.rooms.interruptions import (
    Fault,
    Interruption,
    InterruptsTransactions,
    ProcessKilled,
)
from simulator.rooms.server import SimulatedServer
from simulator.rooms.watched_transaction import WatchedTransaction
from simulator.transcript import Transcript
from synrepl.driver.attempt import Attempt
from synrepl.driver.connection import PostgresConnection
from synrepl.storage.database import Isolation, SerializationFailure, Transaction
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")

#: Seconds until a transaction runs, at most.
SLOWEST_S = 0.2

#: Called with the name of the process and of a transaction that was committed.
Committed = Callable[[str, str], object]


class InterruptedProcessDatabase:
    """Implements :class:`synrepl.storage.database.Database` for a process of a simulation.

    A transaction runs at one moment of the simulated time, so no two of them wait for each other. Who is first
    depends on the seed.
    """

    def __init__(
        self,
        process: Process,
        server: SimulatedServer,
        transcript: Transcript,
        interruptions: InterruptsTransactions,
        committed: Committed,
    ) -> None:
        self._process = process
        self._server = server
        self._address = server.address(process.name)
        self._transcript = transcript
        self._interruptions = interruptions
        self._committed = committed
        self._connections: list[PostgresConnection] = []
        self._sessions: list[SimulatedSession] = []
        process.on_kill(self._disconnect)

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction; see :meth:`synrepl.storage.database.Database.run`."""
        process = self._process
        while True:
            await process.sleep(process.random() ** 3 * SLOWEST_S)
            interruption = self._interruptions.draw(read_only)
            try:
                result = self._attempt(name, work, read_only, isolation, interruption)
            except ProcessKilled:
                process.kill()
            except SerializationFailure:
                continue
            except DatabaseAway:
                if interruption is None or interruption.fault is not Fault.LOST:
                    raise
                continue
            if process.alive:
                await process.sleep(process.random() ** 3 * SLOWEST_S)
                return result
            await Deferred()  # nothing of a killed process goes on

    def _attempt(
        self,
        name: str,
        work: Callable[[Transaction], T],
        read_only: bool,
        isolation: Isolation,
        interruption: Interruption | None,
    ) -> T:
        statements = count(1)

        def interrupt(sql: str) -> None:
            self._interruptions.reached(name, sql)
            if interruption is None or interruption.is_committed:
                return
            if next(statements) >= interruption.statement or sql == "COMMIT":
                raise interruption.error(name)

        def simulated(txn: Transaction) -> T:
            self._server.tell_time(txn)
            result = work(WatchedTransaction(txn, interrupt))
            interrupt("COMMIT")
            return result

        attempt = Attempt(self._address, name, simulated, read_only, isolation)
        try:
            result = attempt.run(self._connection()).result
        except BaseException as error:
            what = type(error).__name__ if interruption is None else str(interruption)
            self._transcript.add(
                self._process.name, "{what}, so '{name}' fails", what=what, name=name
            )
            if interruption is not None:
                self._disconnect_transactions()
            raise
        if not read_only:
            self._transcript.add(self._process.name, "{name}: committed", name=name)
            self._committed(self._process.name, name)
        self._interruptions.reached(name, "after COMMIT")
        if interruption is not None and interruption.is_committed:
            self._transcript.add(self._process.name, "{what}", what=str(interruption))
            raise interruption.error(name)
        return result

    def _connection(self) -> PostgresConnection:
        if not self._connections:
            self._connections.append(self._address.connect())
        return self._connections[0]

    async def open_session(self) -> SimulatedSession:
        """Open a connection for session-level locks."""
        await self._process.sleep(self._process.random() * SLOWEST_S)
        session = SimulatedSession(self._process, self._server, self._interruptions)
        self._sessions.append(session)
        return session

    def lose_sessions(self) -> None:
        """End the connections with session-level locks."""
        for each in self._sessions:
            each.lose("simulated")

    def _disconnect_transactions(self) -> None:
        while self._connections:
            self._server.end(self._connections.pop())

    def _disconnect(self) -> None:
        self._disconnect_transactions()
        self.lose_sessions()


class SimulatedSession:
    """Implements :class:`synrepl.storage.database.DatabaseSession`."""

    def __init__(
        self, process: Process, server: SimulatedServer, interruptions: InterruptsTransactions
    ) -> None:
        self._process = process
        self._interruptions = interruptions
        self._server = server
        self._address = server.address(process.name)
        self._connection = self._address.connect()
        self._lost = ""
        self._is_reported = False
        self._calls: list[Callable[[str], object]] = []

    @property
    def backend_pid(self) -> int:
        """The PID of its backend; 0 once it is over."""
        return 0 if self._connection.closed else self._connection.info.backend_pid

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Have ``call(reason)`` called once when the connection is lost."""
        if self._is_reported:
            call(self._lost)
        else:
            self._calls.append(call)

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in one transaction."""
        await self._process.sleep(self._process.random() ** 3 * SLOWEST_S)
        if self._connection.closed:
            raise self._address.away(self._lost or "closed")

        def interrupted(txn: Transaction) -> T:
            self._server.tell_time(txn)
            result = work(
                WatchedTransaction(txn, lambda sql: self._interruptions.reached("session", sql))
            )
            self._interruptions.reached("session", "COMMIT")
            return result

        attempt = Attempt(self._address, "session", interrupted, False, Isolation.READ_COMMITTED)
        try:
            return attempt.run(self._connection).result
        except ProcessKilled:
            self._process.kill()
            await Deferred()  # nothing of a killed process goes on
            raise

    async def close(self, last: Callable[[Transaction], object] | None = None) -> None:
        """Close the connection, after ``last``."""
        try:
            if last is not None:
                await self.run(last)
        finally:
            self._server.end(self._connection)

    def lose(self, reason: str) -> None:
        """End the connection; the process hears of it a little later."""
        if self._connection.closed:
            return
        self._server.end(self._connection)
        self._lost = reason
        self._process.callLater(self._process.random() * SLOWEST_S, self._report)

    def _report(self) -> None:
        self._is_reported = True
        calls, self._calls = self._calls, []
        for call in calls:
            call(self._lost)
