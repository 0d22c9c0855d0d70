"""Callers' transactions: the contract on both stores, and the features of each."""

from __future__ import annotations

import contextlib
from threading import Barrier, Event
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import CommitUnknown, Database, Transaction
from synrepl.storage.memory.changes import NoTables
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.outbox import KeptInMemory
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.routed_store import RoutedStore
from synrepl.storage.store import DatabaseAway, Draft, FactStore, Fenced, Outbox
from synrepl.storage.tables import sequence_name
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.typing import TYPING
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.contract_transact import CHANGE, EVERY, RefusedWork, TransactContract
from tests.storage.postgres import PostgresCase, Process
from tests.storage.recorded_changes import RecordedChanges
from tests.storage.samples import NOTES, note
from tests.storage.skipping_scheduler import SkippingScheduler
from tests.storage.test_memory_store import SteppedStore

T = TypeVar("T")


class InMemory(TransactContract, TestCase):
    """The contract on the in-memory store."""

    async def make_store(self) -> FactStore:
        self.table: list[str] = []
        self.memory = MemoryStore(
            SkippingScheduler(), begin_changes=lambda: RecordedChanges(self.table)
        )
        return self.memory

    async def changes(self) -> list[str]:
        return sorted(self.table)

    async def cut(self, lease: Any) -> None:
        lease.crash()

    async def set_sequence(self, stream: Stream, token: Token) -> None:
        self.memory.set_sequence(stream, token)


class InPostgres(TransactContract, PostgresCase):
    """The contract on PostgreSQL."""

    async def setUp(self) -> None:  # type: ignore[override]
        await PostgresCase.setUp(self)
        self.sql("CREATE TABLE changes (what text)")
        await TransactContract.setUp(self)

    async def make_store(self) -> FactStore:
        self.one = self.process("one", SkippingScheduler())
        return self.one.store

    async def changes(self) -> list[str]:
        found: list[str] | None = self.sql("SELECT array_agg(what ORDER BY what) FROM changes")
        return found or []

    async def cut(self, lease: Any) -> None:
        session = self.one.session_of(lease)
        lost: list[str] = []
        session.on_lost(lost.append)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", session.backend_pid)
        await self.until(lambda: bool(lost))

    async def set_sequence(self, stream: Stream, token: Token) -> None:
        self.sql(f"SELECT setval('{sequence_name(stream)}', %s)", stream.stream_id(token))


def changing(what: str) -> Any:
    """Work that makes a change and appends a fact about it."""

    def work(txn: Transaction, outbox: Outbox) -> str:
        txn.execute(CHANGE, (what,))
        outbox.append(NOTES, [note(what)])
        return what

    return work


class Steps(TestCase):
    """Events between the atomic parts of a transaction in memory."""

    timeout = 20

    async def setUp(self) -> None:  # type: ignore[override]
        self.table: list[str] = []
        self.store = SteppedStore(begin_changes=lambda: RecordedChanges(self.table))
        self.lease = await self.store.open_writer("w1", [NOTES])
        self.store.stop_at = {"transact reserved"}

    def transact(self, what: str) -> Deferred[Any]:
        floors = {"notes": 0}
        return Deferred.fromCoroutine(
            self.lease.transact("a test", [NOTES], changing(what), lambda: floors)
        )

    async def texts(self) -> list[str]:
        page: Any = await self.store.page(NOTES, Range(0, EVERY), None, 100)
        return [row.text for fact in page.facts for row in fact.rows]

    async def holders(self) -> int:
        return len((await self.store.observe([NOTES]))["notes"].writers["w1"].holders)

    async def test_changes_and_facts_become_visible_at_once(self) -> None:
        first, second = self.transact("first"), self.transact("second")
        self.assertEqual((await self.texts(), self.table, await self.holders()), ([], [], 2))
        self.store.go_on(1)
        await second
        self.assertEqual((await self.texts(), self.table), (["second"], ["second"]))
        self.store.go_on()
        self.assertEqual([fact.token for fact in (await first).facts["notes"]], [1])
        self.assertEqual(await self.holders(), 0)

    async def test_failing_before_and_after_the_commit(self) -> None:
        for step, error, seen in (
            ("transact", DatabaseAway(where="here", reason="cut"), []),
            ("transact reserved", DatabaseAway(where="here", reason="cut"), []),
            ("transact committed", CommitUnknown(name="x", where="here", xid=1, reason=""), ["a"]),
        ):
            self.store.stop_at = {step}
            running = self.transact("a")
            self.store.fail(error)
            await self.assertFailure(running, type(error))
            self.assertEqual((await self.texts(), self.table), (seen, seen))
            self.assertEqual(await self.holders(), 0)

    async def test_killing_rolls_back(self) -> None:
        running = self.transact("never")
        self.lease.kill()
        self.assertTrue(await self.store.fence(NOTES, "w1"))
        self.store.go_on()
        await self.assertFailure(running, DatabaseAway)
        self.assertEqual((await self.texts(), self.table), ([], []))

    async def test_retries_when_the_sequence_was_set_back_meanwhile(self) -> None:
        running = self.transact("twice")
        self.store.set_sequence(NOTES, 0)
        await self.lease.append(NOTES, [Draft([[note("between")]])], 0)
        self.store.go_on()
        self.store.go_on()
        self.assertEqual([fact.token for fact in (await running).facts["notes"]], [2])
        self.assertEqual((await self.texts(), self.table), (["between", "twice"], ["twice"]))

    async def test_the_memory_store_refuses_sql_by_default(self) -> None:
        lease = await MemoryStore(SkippingScheduler()).open_writer("w1", [NOTES])
        with self.assertRaises(NoTables) as caught:
            await lease.transact("a test", [NOTES], changing("a"), lambda: {"notes": 0})
        self.assertIn("INSERT INTO changes", str(caught.exception))

    async def test_refuses_a_stream_in_memory(self) -> None:
        store = RoutedStore(self.store, MemoryStore(SkippingScheduler()))
        lease = await store.open_writer("w2", [NOTES, TYPING])
        floors = {"notes": 0, "typing": 0}
        self.store.stop_at = set()
        with self.assertRaises(KeptInMemory):
            await lease.transact("a test", [NOTES, TYPING], changing("a"), lambda: floors)
        self.assertEqual(self.table, [])
        await lease.transact("a test", [NOTES], changing("b"), lambda: floors)
        self.assertEqual((await self.texts(), self.table), (["b"], ["b"]))


class UnansweredCommits:
    """A database that loses the answers of some transactions.

    :ivar commits: of each transaction named ``lost`` whose answer is lost, in turn,
        whether it is committed
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.commits: list[bool] = []

    async def run(self, name: str, work: Any, **how: Any) -> Any:
        if name != "lost" or not self.commits:
            return await self._database.run(name, work, **how)

        def undone(txn: Transaction) -> None:
            work(txn)
            raise RefusedWork

        with contextlib.suppress(RefusedWork):
            await self._database.run(name, work if self.commits.pop(0) else undone, **how)
        raise CommitUnknown(where="here", name=name, xid=7, reason="a test says so")


class ForgetfulProcess(Process):
    """A process whose database may not answer."""

    def __init__(self, dsn: str, name: str) -> None:
        super().__init__(dsn, name)
        self.unanswered = UnansweredCommits(self.database)
        self.store = PostgresStore(self.scheduler, self.unanswered, self.open_session, name)


class OnlyInPostgres(PostgresCase):
    """A writer that announces, on a real database."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql("CREATE TABLE changes (what text)")
        self.one = ForgetfulProcess(self.dsn, "one")
        self.addCleanup(lambda: Deferred.fromCoroutine(self.one.close()))
        self.here = AnnouncingProcess(self, self.one, "w1")
        await self.here.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(self.here.stop()))

    def transact(self, work: Any, name: str = "a test") -> Deferred[Any]:
        return Deferred.fromCoroutine(self.here.writer.transact(name, [NOTES], work))

    async def settled(self, *texts: str) -> None:
        """Check that everything was announced in order, and nothing holds the position back."""
        stored = self.sql("SELECT array_agg(text ORDER BY stream_id) FROM synrepl.notes") or []
        self.assertEqual(sorted(stored), sorted(texts))
        await self.until(lambda: len(self.here.listener.linear_facts) >= len(texts))
        received: list[Any] = [row for fact in self.here.listener.facts for row in fact.rows]
        self.assertEqual([row.text for row in received], stored)
        self.assertEqual(self.here.writer.ledger("notes").open_requests, 0)
        self.assertEqual(self.here.writer.ledger("notes").outstanding, 0)

    def changes(self) -> list[str]:
        return self.sql("SELECT array_agg(what ORDER BY what) FROM changes") or []

    async def test_a_rollback_does_not_hold_the_position(self) -> None:
        def failing(txn: Transaction, outbox: Outbox) -> None:
            changing("never")(txn, outbox)
            txn.execute("SELECT nextval(%s)", (sequence_name(NOTES),))  # a token that is never used
            raise RefusedWork

        await self.here.writer.append(NOTES, [[note("before")]])
        await self.assertFailure(self.transact(failing), RefusedWork)
        await self.transact(changing("after"))
        await self.settled("before", "after")
        self.assertEqual(self.changes(), ["after"])

    async def test_several_run_at_once_beside_appends(self) -> None:
        together = Barrier(3, timeout=20)

        def work(n: int) -> Any:
            def run(txn: Transaction, outbox: Outbox) -> None:
                changing(f"transaction {n}")(txn, outbox)
                together.wait()

            return run

        running = [self.transact(work(n)) for n in range(2)]
        written = await self.here.writer.append(NOTES, [[note("meanwhile")]])
        # Other processes do not wait for work that is still running.
        received = [fact.rows for fact in self.here.listener.facts]
        self.assertEqual((written.tokens, received), ([1], [(note("meanwhile"),)]))
        running.append(self.transact(work(2)))
        await gatherResults(running)
        await self.settled("meanwhile", *(f"transaction {n}" for n in range(3)))
        self.assertEqual(self.here.listener.facts[0].token, written.tokens[0])

    async def test_retries_when_the_connection_is_lost_in_the_middle(self) -> None:
        killer = self.connect()
        runs: list[int] = []

        def work(txn: Transaction, outbox: Outbox) -> None:
            (backend,) = txn.execute("SELECT pg_backend_pid()").fetchone()
            changing("once")(txn, outbox)
            runs.append(backend)
            if len(runs) == 1:
                self.sql("SELECT pg_terminate_backend(%s, 10000)", backend, on=killer)

        await self.transact(work)
        self.assertEqual((len(set(runs)), self.changes()), (2, ["once"]))
        await self.settled("once")

    async def test_the_name_is_taken_over_while_the_work_runs(self) -> None:
        lease = await self.one.store.open_writer("w2", [NOTES])
        begun, go_on = Event(), Event()

        def work(txn: Transaction, outbox: Outbox) -> None:
            changing("late")(txn, outbox)
            begun.set()
            go_on.wait(20)

        running = Deferred.fromCoroutine(
            lease.transact("a test", [NOTES], work, lambda: {"notes": 0})
        )
        await self.until(begun.is_set)
        backend = self.one.session_of(lease).backend_pid
        self.sql("SELECT pg_terminate_backend(%s, 10000)", backend)
        await self.one.store.open_writer("w2", [NOTES])  # does not wait for the work
        go_on.set()
        await self.assertFailure(running, Fenced)
        self.assertEqual(self.changes(), [])
        await self.settled()

    async def test_notifies_only_of_streams_with_facts(self) -> None:
        listener = self.connect()
        self.sql("LISTEN synrepl", on=listener)
        lease = await self.one.store.open_writer("w2", [NOTES, BACKFILL])
        floors = {"notes": 0, "backfill": 0}
        await lease.transact("a test", [NOTES, BACKFILL], changing("a"), lambda: floors)
        self.sql("SELECT 1", on=listener)
        self.assertEqual([notice.payload for notice in listener.notifies], ["notes"])

    async def test_an_unanswered_commit_is_looked_up(self) -> None:
        self.one.unanswered.commits = [True]
        self.assertEqual((await self.transact(changing("a"), "lost")).result, "a")
        self.assertEqual(self.changes(), ["a"])
        await self.settled("a")

    async def test_an_unanswered_rollback_is_retried(self) -> None:
        self.one.unanswered.commits = [False, False, True]
        self.assertEqual((await self.transact(changing("a"), "lost")).result, "a")
        self.assertEqual(self.changes(), ["a"])
        await self.settled("a")

    async def test_reports_a_commit_whose_outcome_is_unknown(self) -> None:
        def silent(txn: Transaction, outbox: Outbox) -> None:
            txn.execute(CHANGE, ("a",))

        self.one.unanswered.commits = [True]
        await self.assertFailure(self.transact(silent, "lost"), CommitUnknown)
        self.assertEqual(self.changes(), ["a"])
        await self.transact(changing("b"))
        await self.settled("b")
