"""The PostgreSQL store: the contract, and its own features."""

from __future__ import annotations

from typing import Any

import psycopg2
from twisted.internet.defer import Deferred

from synrepl.core.tokens import Token
from synrepl.storage.postgres import lease as postgres_lease
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.store import AppendResult, Draft, FactStore, Fenced, WriterState
from synrepl.storage.tables import sequence_name, table_name
from synrepl.storage.writers import FIRST_RESERVATION
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.contract import FactStoreContract
from tests.storage.contract_failover import FailoverContract
from tests.storage.postgres import PostgresCase, Process
from tests.storage.samples import NOTES, STREAMS, note
from tests.storage.skipping_scheduler import SkippingScheduler


class PostgresStoreContract(FailoverContract, FactStoreContract, PostgresCase):
    """The contract that the in-memory store also fulfils."""

    streams = tuple(stream for stream in STREAMS if not stream.in_memory)

    async def setUp(self) -> None:  # type: ignore[override]
        self.processes: list[Process] = []
        await PostgresCase.setUp(self)
        await FactStoreContract.setUp(self)

    async def make_store(self, holder: str) -> FactStore:
        process = self.process(holder, SkippingScheduler())
        self.processes.append(process)
        return process.store

    async def prepare_all(self) -> None:
        await self.processes[0].store.prepare(self.streams)

    async def pass_time(self, seconds: float) -> None:
        self.sql("UPDATE synrepl._stream_marks SET at = at - make_interval(secs => %s)", seconds)

    async def cut(self, lease: Any) -> None:
        sessions = (session for process in self.processes for session in process.sessions)
        session = next(s for s in sessions if s.backend_pid == lease.backend_pid)
        lost: list[str] = []
        session.on_lost(lost.append)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", session.backend_pid)
        await self.until(lambda: bool(lost))

    async def promote(self, lacks: Stream, above: Token) -> None:
        self.sql("SET session_replication_role = replica", on=(by_hand := self.connect()))
        self.sql(f"DELETE FROM {table_name(lacks)} WHERE abs(stream_id) > %s", above, on=by_hand)
        promoted = "UPDATE synrepl._incarnations SET timeline = 'AAAA' || number"
        self.sql(f"{promoted} WHERE number = (SELECT max(number) FROM synrepl._incarnations)")

    async def set_sequence(self, stream: Stream, token: Token) -> None:
        self.sql(f"SELECT setval('{sequence_name(stream)}', %s)", stream.stream_id(token))


class PostgresSpecifics(PostgresCase):
    """Features without a counterpart in memory."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.one = self.process("one")
        self.lease = await self.one.store.open_writer("w1", [NOTES])

    async def state(self) -> WriterState:
        seen = await self.process("observer").store.observe([NOTES])
        return seen["notes"].writers["w1"]

    async def test_a_successor_counts_once_its_predecessor_is_fenced(self) -> None:
        await self.lease.reserve(NOTES, 1, 0)
        number = self.sql("SELECT number FROM synrepl._writers WHERE writer = 'w1'")
        backend = self.one.session_of(self.lease).backend_pid
        self.sql("SELECT pg_terminate_backend(%s, 10000)", backend)
        successor = self.connect()
        self.sql("SELECT pg_advisory_lock(synrepl.lock_class(%s), 0)", number, on=successor)
        state = await self.state()
        self.assertEqual((state.is_held, state.is_alive), (True, False))
        self.assertFalse(await self.one.store.fence(NOTES, "w1"))

    async def test_a_reservation_that_was_refused_holds_nothing(self) -> None:
        self.sql("UPDATE synrepl._writers SET epoch = epoch + 1 WHERE writer = 'w1'")
        with self.assertRaises(Fenced):
            await self.lease.reserve(NOTES, 1, 0)
        self.assertEqual((await self.state()).holders, ())

    async def test_lock_numbers_wrap_around(self) -> None:
        self.patch(postgres_lease, "LAST_RESERVATION", FIRST_RESERVATION + 1)
        await self.lease.release(NOTES, await self.lease.reserve(NOTES, 1, 0))
        first = await self.lease.reserve(NOTES, 1, 0)
        second = await self.lease.reserve(NOTES, 1, 0)
        self.assertEqual(len({h.identity for h in (await self.state()).holders}), 2)
        await self.lease.release(NOTES, [*first, *second])
        self.assertEqual((await self.state()).holders, ())

    async def test_describes_the_holders_of_names_and_tokens(self) -> None:
        await self.lease.reserve(NOTES, 1, 0)
        (holder,) = (await self.state()).holders
        for word in ("backend", "synrepl one"):
            self.assertIn(word, holder.description)

    async def test_a_reservation_is_the_same_one_whatever_its_transaction_does_next(self) -> None:
        application = self.connect()
        self.sql("BEGIN", on=application)
        self.sql("""SELECT synrepl.append('notes', '[{"text": "a"}]')""", on=application)
        observer = self.process("observer").store
        (before,) = (await observer.observe([NOTES]))["notes"].writers["sql"].holders
        self.sql("SELECT 'something else'", on=application)
        (after,) = (await observer.observe([NOTES]))["notes"].writers["sql"].holders
        self.assertNotEqual(before.description, after.description)
        self.assertEqual(before, after)
        assert before.transaction_s is not None
        assert after.transaction_s is not None
        self.assertGreater(after.transaction_s, before.transaction_s)

    async def test_an_answer_that_an_older_process_kept_names_the_writer_of_the_facts(self) -> None:
        await self.one.store.prepare([BACKFILL])
        first = await self.one.store.open_writer("w2", [NOTES, BACKFILL])
        row = BackfillRow("$e", "!r", "m", None, None, None)
        drafts = (NOTES, Draft([[note("a")]], key="k")), (BACKFILL, Draft([[row]], key="k"))
        other = await self.one.store.open_writer("w3", [NOTES, BACKFILL])
        for stream, draft in drafts:
            (written,) = await first.append(stream, [draft], 0)
            self.sql("UPDATE synrepl._idempotency_keys SET writer = NULL")
            (again,) = await other.append(stream, [draft], 0)
            self.assertEqual(again, AppendResult(written.tokens, "w2", replayed=True))

    async def test_an_answer_whose_facts_are_gone_names_the_requesting_writer(self) -> None:
        draft = Draft([[]], key="k")  # a fact without rows leaves no trace either
        (written,) = await self.lease.append(NOTES, [draft], 0)
        self.sql("UPDATE synrepl._idempotency_keys SET writer = NULL")
        other = await self.one.store.open_writer("w2", [NOTES])
        (again,) = await other.append(NOTES, [draft], 0)
        self.assertEqual(again, AppendResult(written.tokens, "w2", replayed=True))

    async def test_commits_are_not_notified_if_no_other_process_announces(self) -> None:
        listener = self.connect()
        self.sql("LISTEN synrepl", on=listener)
        store = PostgresStore(
            self.one.scheduler, self.one.database, self.one.open_session, "one", notify=False
        )
        lease = await store.open_writer("w2", [NOTES])
        await lease.append(NOTES, [Draft([[note("a")]])], 0)
        await self.lease.append(NOTES, [Draft([[note("b")]])], 0)
        self.sql("SELECT 1", on=listener)
        self.assertEqual([notice.payload for notice in listener.notifies], ["notes"])


class SingleRowAppends(PostgresCase):
    """Appends in a single statement; the outcome of a lost one is still determined."""

    async def test_a_connection_lost_during_an_append_is_reported(self) -> None:
        here = AnnouncingProcess(self, self.process("one"), "w1")
        await here.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(here.stop()))
        await here.writer.append(NOTES, [[note("first")]])
        blocker = psycopg2.connect(self.dsn)
        self.addCleanup(blocker.close)
        blocker.cursor().execute("LOCK TABLE synrepl.notes IN SHARE MODE")
        appending = Deferred.fromCoroutine(here.writer.append(NOTES, [[note("second")]]))
        backend = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        await self.until(lambda: self.sql(backend) is not None)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", self.sql(backend))
        blocker.rollback()
        written = await appending
        texts = "SELECT array_agg(stream_id ORDER BY stream_id) FROM synrepl.notes"
        self.assertEqual(self.sql(texts), [1, *written.tokens])
        await self.until(lambda: here.state.linear >= written.tokens[0])
