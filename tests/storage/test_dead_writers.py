"""Writers that die or lose their name while they hold tokens (R8), on a real database."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from simulator.death_checker import FENCED_WITHIN_S
from synrepl.core.tokens import Range, Token
from synrepl.services.writing.reservation import ReservationVoid
from synrepl.storage.store import Fenced
from synrepl.streams.definition import Fact
from tests.storage import doomed_writer
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.postgres import PostgresCase, reactor
from tests.storage.samples import NOTES, note

REPOSITORY = Path(__file__).resolve().parents[2]


class DoomedProcess(ProcessProtocol):
    """A process that prints its tokens, and runs until it is killed."""

    def __init__(self) -> None:
        self.holds: Deferred[list[Token]] = Deferred()
        self.ended: Deferred[int | None] = Deferred()
        self._output = b""
        self._errors = b""

    def outReceived(self, data: bytes) -> None:
        self._output += data
        if self._output.endswith(b"\n"):
            self.holds.callback([int(word) for word in self._output.split()])

    def errReceived(self, data: bytes) -> None:
        self._errors += data

    def kill(self) -> None:
        """Kill it without any chance to clean up."""
        transport: Any = self.transport
        transport.signalProcess("KILL")

    def processEnded(self, reason: Failure) -> None:
        if not self.holds.called:
            self.holds.errback(AssertionError(self._errors.decode()))
        assert isinstance(reason.value, (ProcessDone, ProcessTerminated))
        self.ended.callback(reason.value.signal)


class DeadWriters(PostgresCase):
    """Writers observed by a process that writes and announces."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.observer = self.process("observer")
        self.announcing = AnnouncingProcess(self, self.observer, "observer")
        self.listener = self.announcing.listener
        await self.announcing.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(self.announcing.stop()))

    def spawn(self, how: str) -> DoomedProcess:
        child = DoomedProcess()
        arguments = [sys.executable, "-m", doomed_writer.__name__, self.dsn, how]
        reactor.spawnProcess(
            child, sys.executable, arguments, env={**os.environ}, path=str(REPOSITORY)
        )

        async def end() -> None:
            if not child.ended.called:
                child.kill()
            await self.until(lambda: child.ended.called)

        self.addCleanup(lambda: Deferred.fromCoroutine(end()))
        return child

    async def facts(self) -> list[Fact]:
        page = await self.observer.store.page(NOTES, Range(0, 10_000), None, 10_000)
        return list(page.facts)

    async def fact_above(self, held: list[Token]) -> Token:
        """Append a fact, and check that the linear position does not reach it."""
        above: Token = (await self.announcing.writer.append(NOTES, [[note("above")]])).tokens[0]
        self.assertGreater(above, held[-1])
        self.assertEqual(self.listener.positions["observer"], above)
        await self.until(lambda: self.announcing.sees(doomed_writer.WRITER))
        self.assertLess(self.listener.linear, held[0])
        return above

    async def check_killed(self, how: str) -> None:
        child = self.spawn(how)
        above = await self.fact_above(await child.holds)
        child.kill()
        killed = reactor.seconds()
        await self.until(lambda: self.listener.linear >= above)
        self.assertLess(reactor.seconds() - killed, FENCED_WITHIN_S)
        self.assertEqual([f.rows for f in self.listener.linear_facts], [(note("above"),)])
        self.assertEqual(await self.facts(), self.listener.linear_facts)

    async def test_a_writer_killed_with_a_reservation_is_fenced(self) -> None:
        await self.check_killed("reserved")
        # If its transaction ended with it, there may be nothing to release.
        self.assertIn("writer doomed of notes is dead", " ".join(self.announcing.log.lines))

    async def test_a_writer_killed_inside_its_transaction_is_fenced(self) -> None:
        await self.check_killed("inserted")

    async def test_a_successor_may_have_the_name_of_one_that_was_killed(self) -> None:
        child = self.spawn("reserved")
        held = await child.holds
        child.kill()
        successor = self.process("successor")
        lease = await successor.store.open_writer(doomed_writer.WRITER, [NOTES])
        tokens = await lease.reserve(NOTES, 1, 0)
        self.assertGreater(tokens[0], held[-1])
        await lease.release(NOTES, tokens)
        await self.until(lambda: self.listener.linear >= tokens[0])

    async def test_a_late_writer_is_fenced(self) -> None:
        process = self.process("late")
        lease = await process.store.open_writer(doomed_writer.WRITER, [NOTES])
        held = list(await lease.reserve(NOTES, 2, 0))
        above = await self.fact_above(held)
        backend = process.session_of(lease).backend_pid
        self.sql("SELECT pg_terminate_backend(%s, 10000)", backend)
        await self.until(lambda: self.listener.linear >= above)
        with self.assertRaises(Fenced):
            await lease.write(NOTES, [Fact(held[0], lease.writer, (note("late"),))])
        self.assertEqual([f.rows for f in await self.facts()], [(note("above"),)])

    async def test_a_late_service_learns_that_its_reservation_is_void(self) -> None:
        process = self.process("late")
        late = AnnouncingProcess(self, process, doomed_writer.WRITER)
        await late.writer.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(late.writer.stop()))
        async with await late.writer.reserve(NOTES, 2) as reservation:
            above = await self.fact_above(list(reservation.tokens))
            (session,) = process.sessions
            self.sql("SELECT pg_terminate_backend(%s, 10000)", session.backend_pid)
            await self.until(lambda: self.listener.linear >= above)
            with self.assertRaises((Fenced, ReservationVoid)):
                await reservation.write([[note("late")]])
        self.assertEqual([f.rows for f in await self.facts()], [(note("above"),)])
        await self.until(lambda: late.writer.is_open)
        (token,) = (await late.writer.append(NOTES, [[note("again")]])).tokens
        await self.until(lambda: self.listener.linear >= token)
        self.assertEqual(self.listener.linear_facts, await self.facts())
