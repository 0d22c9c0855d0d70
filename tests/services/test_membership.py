"""Writers that are added, drained and removed, on a real database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import psycopg2
from twisted.internet.defer import Deferred

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range
from synrepl.services.membership import Membership, StillOpen
from synrepl.storage.database import Transaction
from synrepl.storage.membership import (
    Member,
    NoSuchWriter,
    NotDrained,
    State,
    WriterBusy,
    WriterLives,
)
from synrepl.storage.store import Draft, Drained, Fenced, StreamNotMade, WriterRemoved
from synrepl.storage.writers import register
from synrepl.streams.definition import Fact
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.postgres import PostgresCase, Process, reactor
from tests.storage.samples import NOTES, note
from tests.storage.skipping_scheduler import SkippingScheduler

#: Seconds; the tests end it sooner.
LONG = 60.0


class InterruptedScheduler(TwistedScheduler):
    """A scheduler that runs a callback before its first sleep."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(reactor)
        self._call: Callable[[], object] | None = call

    def sleep(self, seconds: float) -> Deferred[None]:
        call, self._call = self._call, None
        if call is not None:
            call()
        return super().sleep(seconds)


class MeddlingTransaction:
    """A transaction that runs a callback before one of its statements."""

    def __init__(self, txn: Any, before: str, meddle: Callable[[], object]) -> None:
        self._txn = txn
        self._before = before
        self._meddle = meddle

    def execute(self, sql: str, params: Any = ()) -> Any:
        """Run a statement."""
        if sql.startswith(self._before):
            self._meddle()
        return self._txn.execute(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


class MembershipCase(PostgresCase):
    """Base of tests with an operator, and processes that write."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.operator = self.process("operator")
        self.membership = Membership(self.operator.scheduler, self.operator.database)

    async def writing(self, name: str) -> tuple[Process, AnnouncingProcess]:
        """Start a process that writes."""
        process = self.process(name)
        announcing = AnnouncingProcess(self, process, name)
        await announcing.writer.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(announcing.writer.stop()))
        return process, announcing

    async def announcing(self, name: str = "observer") -> AnnouncingProcess:
        """Start a process that writes and announces."""
        announcing = AnnouncingProcess(self, self.process(name), name)
        await announcing.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(announcing.stop()))
        return announcing

    async def member(self, writer: str) -> Member:
        """A writer, as the database has it."""
        found = await self.membership.members([NOTES])
        return next(member for member in found if member.writer == writer)

    async def is_refused(self, error: type[Exception], coroutine: Any) -> str:
        """Check that a coroutine raises an error, and return its message."""
        with self.assertRaises(error) as caught:
            await coroutine
        return str(caught.exception)

    async def kill(self, process: Process) -> None:
        """End every connection of a process, as when it is killed."""
        for session in process.sessions:
            self.sql("SELECT pg_terminate_backend(%s, 10000)", session.backend_pid)


class Draining(MembershipCase):
    """The writer gets no new tokens, and its open ones settle."""

    async def test_a_drained_writer_gets_no_tokens_and_others_do(self) -> None:
        _, leaving = await self.writing("leaving")
        _, staying = await self.writing("staying")
        await self.membership.drain(NOTES, "leaving", LONG)
        words = "writer 'leaving' of stream 'notes' is drained"
        for attempt in (
            leaving.writer.append(NOTES, [[note("one row")]]),
            leaving.writer.append(NOTES, [[note("two")], [note("facts")]], "key"),
            leaving.writer.reserve(NOTES, 1),
            leaving.writer.transact("t", [NOTES], lambda txn, out: out.append(NOTES, [note("t")])),
        ):
            self.assertIn(words, await self.is_refused(Drained, attempt))
        await staying.writer.append(NOTES, [[note("another")]])
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes"), 1)

    async def test_waits_for_a_writer_to_settle_what_it_has_reserved(self) -> None:
        _, leaving = await self.writing("leaving")
        async with await leaving.writer.reserve(NOTES, 2) as reservation:
            message = await self.is_refused(StillOpen, self.membership.drain(NOTES, "leaving", 0.0))
            self.assertIn("backend", message)
            self.assertIn("leaving", message)
            self.assertIs((await self.member("leaving")).state, State.DRAINING)
            await reservation.write([[note("reserved before")]])
        await self.membership.drain(NOTES, "leaving", LONG)
        self.assertIs((await self.member("leaving")).state, State.DRAINED)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes"), 1)

    async def test_later_attempts_to_write_do_not_delay_it(self) -> None:
        open_, attempt = psycopg2.connect(self.dsn), psycopg2.connect(self.dsn)
        enter = (
            "SELECT synrepl.enter(number, epoch, false) FROM synrepl._writers"
            " WHERE stream = 'notes' AND writer = 'sql'"
        )
        self.sql(enter, on=open_)

        def between() -> None:  # there is always one, but not the same
            self.sql(enter, on=attempt)
            open_.rollback()

        membership = Membership(InterruptedScheduler(between), self.operator.database)
        await membership.drain(NOTES, "sql", LONG)
        self.assertIs((await self.member("sql")).state, State.DRAINED)
        for connection in (open_, attempt):
            connection.close()

    async def test_fences_off_a_dead_writer(self) -> None:
        process = self.process("late")
        lease = await process.store.open_writer("late", [NOTES])
        (token,) = await lease.reserve(NOTES, 1, 0)
        await self.kill(process)
        await self.membership.drain(NOTES, "late", LONG)
        late = Fact(token, "late", (note("late"),))
        await self.is_refused(Fenced, lease.write(NOTES, [late]))

    async def test_drains_a_writer_under_load(self) -> None:
        _, leaving = await self.writing("leaving")
        written: list[int] = []
        stopped = False

        async def write() -> None:
            while not stopped:
                try:
                    written.extend((await leaving.writer.append(NOTES, [[note("x")]])).tokens)
                except Drained:
                    await self.tick()

        ended = [Deferred.fromCoroutine(write()) for _ in range(8)]
        await self.until(lambda: len(written) > 20)
        await self.membership.drain(NOTES, "leaving", LONG)
        count = len(written)
        stopped = True
        for deferred in ended:
            await deferred
        # Answers may still have been on their way to those who asked.
        self.assertLessEqual(len(written) - count, len(ended))
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes"), len(written))

    async def test_waits_for_a_plain_sql_transaction(self) -> None:
        connection = psycopg2.connect(self.dsn)
        self.addCleanup(connection.close)
        rows = '[{"text": "plain"}]'
        self.sql("SELECT synrepl.append('notes', %s)", rows, on=connection)
        await self.is_refused(StillOpen, self.membership.drain(NOTES, "sql", 0.0))
        connection.commit()
        await self.membership.drain(NOTES, "sql", LONG)
        with self.assertRaisesRegex(psycopg2.Error, "is drained"):
            self.sql("SELECT synrepl.append('notes', %s)", rows)

    async def test_adding_a_drained_writer_lets_it_write_again(self) -> None:
        _, leaving = await self.writing("leaving")
        await self.membership.drain(NOTES, "leaving", LONG)
        self.assertTrue(await self.membership.add(NOTES, "leaving"))
        self.assertFalse(await self.membership.add(NOTES, "leaving"))
        await leaving.writer.append(NOTES, [[note("again")]])

    async def test_refuses_an_unknown_writer(self) -> None:
        await self.is_refused(NoSuchWriter, self.membership.drain(NOTES, "nobody", LONG))
        await self.is_refused(NoSuchWriter, self.membership.remove(NOTES, "nobody"))


class Removing(MembershipCase):
    """Only with proof, so that no position waits for a removed writer."""

    async def test_refuses_to_remove_a_writer_that_may_write(self) -> None:
        _, living = await self.writing("living")
        message = await self.is_refused(WriterLives, self.membership.remove(NOTES, "living"))
        self.assertIn("it is living, Postgres backend", message)
        await self.membership.drain(NOTES, "living", LONG)
        await self.is_refused(WriterLives, self.membership.remove(NOTES, "living"))
        await self.membership.add(NOTES, "idle")
        await self.is_refused(NotDrained, self.membership.remove(NOTES, "idle"))
        await living.writer.stop()
        await self.membership.remove(NOTES, "living")
        self.assertIs((await self.member("living")).state, State.REMOVED)

    async def test_refuses_while_a_transaction_of_the_writer_can_commit(self) -> None:
        process = self.process("doomed")
        await process.store.open_writer("doomed", [NOTES])
        zombie = psycopg2.connect(self.dsn)  # as one that outlives the process's session
        self.addCleanup(zombie.close)
        self.sql(
            "SELECT synrepl.enter(number, epoch, false) FROM synrepl._writers"
            " WHERE writer = 'doomed'",
            on=zombie,
        )
        await self.kill(process)
        impatient = Membership(SkippingScheduler(), self.operator.database)
        await self.is_refused(WriterBusy, impatient.remove(NOTES, "doomed"))
        await self.is_refused(StillOpen, impatient.drain(NOTES, "doomed", 1.0))
        zombie.rollback()
        await self.membership.remove(NOTES, "doomed")

    async def test_facts_of_a_removed_writer_stay_and_are_announced_to_the_last(self) -> None:
        observer = await self.announcing()
        _, leaving = await self.writing("leaving")
        await leaving.writer.append(NOTES, [[note(str(n))] for n in range(5)])
        await leaving.writer.stop()
        await self.membership.drain(NOTES, "leaving", LONG)
        await self.membership.remove(NOTES, "leaving")  # perhaps before the observer has looked
        (above,) = (await observer.writer.append(NOTES, [[note("above")]])).tokens
        await self.until(lambda: observer.listener.linear >= above)
        page = await self.operator.store.page(NOTES, Range(0, above), None, 100)
        self.assertEqual(observer.listener.linear_facts, list(page.facts))
        self.assertEqual(len(page.facts), 6)
        *left, _ = page.facts
        self.assertEqual([f for f in observer.listener.facts if f.writer == "leaving"], left)
        # Once it is idle, it may go on with the linear position.
        self.assertIn(observer.listener.positions["leaving"], (left[-1].token, above))

    async def test_a_dead_writer_that_is_removed_holds_no_position_back(self) -> None:
        process = self.process("doomed")
        lease = await process.store.open_writer("doomed", [NOTES])
        tokens = await lease.reserve(NOTES, 2, 0)
        await self.kill(process)
        self.assertIs((await self.member("doomed")).state, State.DEAD)
        await self.membership.remove(NOTES, "doomed")  # no master runs that could fence it
        observer = await self.announcing()
        (above,) = (await observer.writer.append(NOTES, [[note("above")]])).tokens
        self.assertGreater(above, tokens[-1])
        await self.until(lambda: observer.listener.linear >= above)

    async def test_a_fenced_writer_is_dead_until_a_process_takes_its_name(self) -> None:
        process = self.process("doomed")
        await process.store.open_writer("doomed", [NOTES])
        await self.kill(process)
        self.assertTrue(await self.operator.store.fence(NOTES, "doomed"))
        self.assertIs((await self.member("doomed")).state, State.DEAD)
        lease = await self.process("again").store.open_writer("doomed", [NOTES])
        self.assertIs((await self.member("doomed")).state, State.LIVE)
        await lease.close()
        await self.is_refused(NotDrained, self.membership.remove(NOTES, "doomed"))

    async def test_refuses_a_removed_writer_that_wakes_up_late(self) -> None:
        process = self.process("late")
        lease = await process.store.open_writer("late", [NOTES])
        tokens = list(await lease.reserve(NOTES, 1, 0))
        await self.kill(process)
        await self.membership.remove(NOTES, "late")
        late = Fact(tokens[0], "late", (note("late"),))
        message = await self.is_refused(Fenced, lease.write(NOTES, [late]))
        self.assertIn("it was removed", message)
        await self.is_refused(WriterRemoved, process.store.open_writer("late", [NOTES]))
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes"), 0)

    async def test_refuses_plain_sql_with_an_old_snapshot(self) -> None:
        await self.membership.add(NOTES, "billing")
        append = "SELECT synrepl.append('notes', %s, 'billing')"
        rows = '[{"text": "late"}]'
        old = psycopg2.connect(self.dsn)
        self.addCleanup(old.close)
        old.set_session("REPEATABLE READ")
        self.sql("SELECT count(*) FROM synrepl._writers", on=old)
        await self.membership.drain(NOTES, "billing", LONG)
        await self.membership.remove(NOTES, "billing")
        with self.assertRaisesRegex(psycopg2.errors.SerializationFailure, "concurrent update"):
            self.sql(append, rows, on=old)
        with self.assertRaisesRegex(psycopg2.Error, 'writer "billing" .* was removed'):
            self.sql(append, rows)
        with self.assertRaisesRegex(psycopg2.Error, "was removed"):
            self.sql("SELECT synrepl.add_writer('notes', 'billing')")

    async def test_the_position_of_a_returning_writer_does_not_go_back(self) -> None:
        observer = await self.announcing()
        _, writing = await self.writing("seasonal")
        (first,) = (await writing.writer.append(NOTES, [[note("summer")]])).tokens
        await writing.writer.stop()
        await self.membership.drain(NOTES, "seasonal", LONG)
        await self.membership.remove(NOTES, "seasonal")
        await self.until(lambda: observer.listener.positions.get("seasonal", 0) >= first)
        self.assertTrue(await self.membership.add(NOTES, "seasonal"))
        _, again = await self.writing("seasonal")
        (second,) = (await again.writer.append(NOTES, [[note("winter")]])).tokens
        await self.until(lambda: observer.listener.linear >= second)
        self.assertEqual(
            [fact.rows for fact in observer.listener.facts], [(note("summer"),), (note("winter"),)]
        )

    async def test_a_process_that_starts_meanwhile_is_refused_or_keeps_the_writer(self) -> None:
        await self.membership.add(NOTES, "racing")
        for round_ in range(30):
            await self.membership.drain(NOTES, "racing", LONG)
            opening = Deferred.fromCoroutine(self.operator.store.open_writer("racing", [NOTES]))
            for _ in range(round_ % 7):
                await self.tick()
            try:
                await self.membership.remove(NOTES, "racing")
                removed = True
            except WriterLives:
                removed = False
            try:
                lease = await opening
            except WriterRemoved:
                self.assertTrue(removed)
                await self.membership.add(NOTES, "racing")
                continue
            self.assertFalse(removed)
            await self.membership.add(NOTES, "racing")
            await lease.append(NOTES, [Draft([[note("x")]])], 0)
            await lease.close()

    async def test_refuses_a_writer_that_is_removed_while_its_process_starts(self) -> None:
        await self.membership.add(NOTES, "racing")
        outside = self.connect()

        def work(txn: Any) -> int:
            return register(
                cast(Transaction, MeddlingTransaction(txn, "SELECT number", meddle)),
                "notes",
                "racing",
            )

        def meddle() -> None:
            self.sql(
                "UPDATE synrepl._writers SET number = DEFAULT, removed = true"
                " WHERE writer = 'racing'",
                on=outside,
            )

        await self.is_refused(WriterRemoved, self.operator.database.run("register", work))

    async def test_a_drained_writer_starts_even_if_the_sequence_is_behind(self) -> None:
        _, writing = await self.writing("drained")
        tokens = (await writing.writer.append(NOTES, [[note(str(n))] for n in range(9)])).tokens
        await writing.writer.stop()
        await self.membership.drain(NOTES, "drained", LONG)
        self.sql("SELECT setval('synrepl._notes_seq', 1)")
        _, again = await self.writing("drained")
        await self.is_refused(Drained, again.writer.append(NOTES, [[note("refused")]]))
        await self.membership.add(NOTES, "drained")
        (token,) = (await again.writer.append(NOTES, [[note("above")]])).tokens
        self.assertGreater(token, tokens[-1])


class Listing(MembershipCase):
    """Writers are listed as the database has them."""

    async def test_lists_every_writer_with_its_state(self) -> None:
        _, living = await self.writing("living")
        (token,) = (await living.writer.append(NOTES, [[note("x")]])).tokens
        await self.membership.add(NOTES, "new")
        members = {member.writer: member for member in await self.membership.members([NOTES])}
        self.assertEqual(
            {name: member.state for name, member in members.items()},
            {"living": State.LIVE, "new": State.IDLE, "sql": State.IDLE},
        )
        self.assertEqual(members["living"].holder, "living")
        self.assertIsNone(members["new"].holder)
        self.assertEqual({member.last_reserved for member in members.values()}, {token})

    async def test_lists_no_writers_of_a_stream_without_a_table(self) -> None:
        self.sql("DELETE FROM synrepl._writers WHERE stream = 'notes'")
        self.sql("DELETE FROM synrepl._streams WHERE stream = 'notes'")
        self.assertEqual(await self.membership.members([NOTES]), [])
        await self.is_refused(StreamNotMade, self.membership.add(NOTES, "new"))
        await self.is_refused(StreamNotMade, self.operator.store.open_writer("new", [NOTES]))
