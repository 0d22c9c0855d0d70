"""Transactions invalidate caches: here when they commit, and elsewhere through one fact."""

from __future__ import annotations

from typing import Any

import psycopg2
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.core.tokens import Range
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.invalidations import (
    MAX_WARNINGS,
    BadInvalidation,
    ChangeOutbox,
    Changes,
    Invalidations,
)
from synrepl.services.coherence.listeners import CoherentCommitListener
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.storage.outbox import NotNamed, Outbox, OutboxFull
from synrepl.storage.tables import ensure_tables, table_name
from synrepl.streams.effects import BadKeys, Expansion, Invalidates, whole
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.caches import CACHES, CachesRow
from tests.services.coherent_master import CATALOGUE, ORDERS, CoherentMasterCase, OrderRow
from tests.services.world import NullLog, RecordingLog, done, manual_clock
from tests.storage.postgres import PostgresCase

LOST = CommitUnknown(where="memory", name="x", xid="7", reason="cut")


class CommittingChanges(CoherentMasterCase):
    def change(self, txn: Transaction, out: ChangeOutbox) -> str:
        txn.execute("INSERT INTO changes VALUES (%s)", ("@a",))
        self.site.truth["@a"] = 1
        out.invalidate("get_user", ("@a",))
        return "result"

    def stored(self) -> list[tuple[int, list[tuple[str, Any]]]]:
        """The facts in the ``caches`` stream, as name and keys of each row."""
        page = self.site.store.page(CACHES, Range(0, 2**62), None, 1_000)
        return [
            (fact.token, [(row.cache_func, row.keys) for row in fact.rows])  # type: ignore[attr-defined]
            for fact in done(page).facts
        ]

    def test_invalidates_here_and_publishes_to_others(self) -> None:
        client = self.client("REPLICATE")
        self.assertEqual(self.run_changes(self.change), ["result"])
        self.assertEqual((self.site.store.table, self.site.cached("get_user")), (["@a"], [("@b",)]))
        self.assertEqual(self.site.get_user("@a"), ("@a", 1))
        (line,) = client.rows()
        self.assertEqual(line, 'RDATA caches master 1 ["get_user",["@a"],0]')

    def test_writes_several_invalidations_as_one_fact(self) -> None:
        def work(txn: Transaction, out: ChangeOutbox) -> None:
            out.invalidate("get_user", ("@a",))
            out.invalidate("get_user", ("@b",))
            out.invalidate_all("get_orders")

        self.site.clock.advance(12.5)
        modern, legacy = self.client("REPLICATE"), self.client("REPLICATE caches NOW")
        self.run_changes(work)
        rows = [
            '["get_user",["@a"],12500]',
            '["get_user",["@b"],12500]',
            '["get_orders",null,12500]',
        ]
        to_modern = [f"RDATA caches master batch {row}" for row in rows[:2]]
        self.assertEqual(modern.rows(), [*to_modern, f"RDATA caches master 1 {rows[2]}"])
        to_legacy = [f"RDATA caches batch {row}" for row in rows[:2]]
        self.assertEqual(legacy.rows(), [*to_legacy, f"RDATA caches 1 {rows[2]}"])
        self.assertEqual((self.site.cached("get_user"), self.site.cached("get_orders")), ([], []))

    def test_invalidates_before_the_position_is_announced(self) -> None:
        """So neither the caller nor waiters for the position read stale entries."""
        order: list[Any] = []
        announced = self.site.announcer.settled

        def settled(*arguments: Any) -> None:
            order.append(("announced", arguments[0].name, self.site.cached("get_user")))
            announced(*arguments)

        self.site.announcer.settled = settled  # type: ignore[method-assign]
        self.run_changes(self.change)
        self.assertEqual(order[0], ("announced", "caches", [("@b",)]))

    def test_drops_a_load_that_began_before_the_commit(self) -> None:
        """It may have read old data, and ended only after the commit."""
        (cache,) = self.site.caches.named("get_user")
        self.site.store.stop = ["transact committed"]
        outcome = self.run_changes(self.change)
        early = cache.begin(("@c",))
        self.assertEqual(outcome, [])
        cache.invalidate(("@a",))
        load = cache.begin(("@a",))
        self.site.store.stopped.pop().callback(None)
        self.assertEqual(outcome, ["result"])
        cache.loaded(("@a",), load, "old")
        cache.loaded(("@c",), early, "of somebody else")
        self.assertEqual(self.site.cached("get_user"), [("@b",), ("@c",)])

    def test_writes_facts_of_other_streams_in_the_same_transaction(self) -> None:
        def work(txn: Transaction, out: ChangeOutbox) -> None:
            out.append(ORDERS, [OrderRow("c1")])
            out.invalidate("get_user", ("@a",))

        client = self.client("REPLICATE")
        self.run_changes(work, ORDERS)
        positions_seen = sorted(client.rows())
        self.assertEqual(
            positions_seen,
            ['RDATA caches master 1 ["get_user",["@a"],0]', 'RDATA orders master 1 ["c1"]'],
        )
        self.assertEqual(
            (self.site.cached("get_user"), self.site.cached("get_orders")), ([("@b",)], [])
        )

    def test_writes_no_fact_without_invalidations(self) -> None:
        self.assertEqual(self.run_changes(lambda txn, out: 5), [5])
        self.assertEqual((self.stored(), len(self.site.cached("get_user"))), ([], 2))

    def test_writes_each_invalidation_once(self) -> None:
        def work(txn: Transaction, out: ChangeOutbox) -> None:
            for _ in range(3):
                out.invalidate("get_user", ["@a"])
                out.invalidate("get_user", ("@b",))
                out.invalidate("other", ("@a",))

        self.run_changes(work)
        self.assertEqual(
            self.stored(), [(1, [("get_user", ["@a"]), ("get_user", ["@b"]), ("other", ["@a"])])]
        )

    def test_the_whole_cache_replaces_its_keys(self) -> None:
        for name, make_whole in (
            ("said so", lambda out: out.invalidate_all("get_user")),
            ("the empty key", lambda out: out.invalidate("get_user", ())),
            (
                "too many",
                lambda out: [
                    out.invalidate("get_user", (n,)) for n in range(DEFAULT_SIZES.invalidation_keys)
                ],
            ),
        ):
            with self.subTest(name):
                self.setUp()

                def work(txn: Transaction, out: ChangeOutbox, make_whole: Any = make_whole) -> None:
                    out.invalidate("get_user", ("@a",))
                    make_whole(out)
                    out.invalidate("get_user", ("@b",))

                self.run_changes(work)
                self.assertEqual(self.stored(), [(1, [("get_user", None)])])
                self.assertEqual(self.site.cached("get_user"), [])

    def test_writes_as_many_keys_as_the_limit_allows(self) -> None:
        def work(txn: Transaction, out: ChangeOutbox) -> None:
            for n in range(DEFAULT_SIZES.invalidation_keys):
                out.invalidate("get_user", (n,))

        self.run_changes(work)
        ((_, rows),) = self.stored()
        self.assertEqual(len(rows), DEFAULT_SIZES.invalidation_keys)

    def test_only_the_last_run_of_the_work_counts(self) -> None:
        def work(txn: Transaction, out: ChangeOutbox) -> None:
            runs.append(1)
            out.invalidate("get_user", ("@a",) if len(runs) == 1 else ("@b",))

        runs: list[int] = []
        self.site.store.stop = ["transact reserved"]
        outcome = self.run_changes(work)
        self.site.store.stopped.pop().errback(LOST)
        self.site.clock.pump([0.1] * 30)
        self.assertEqual((outcome, len(runs)), ([None], 2))
        self.assertEqual(self.stored()[-1][1], [("get_user", ["@b"])])


class FailingChanges(CoherentMasterCase):
    def check_nothing_happened(self) -> None:
        self.turn()
        self.assertEqual(self.site.store.table, [])
        self.assertEqual(self.site.cached("get_user"), [("@a",), ("@b",)])
        self.assertEqual(self.site.cached("get_orders"), [("c1",)])
        page = self.site.store.page(CACHES, Range(0, 2**62), None, 1_000)
        self.assertEqual(list(done(page).facts), [])

    def refused(self, error: type[Exception], work: Any) -> str:
        (raised,) = self.run_changes(work)
        self.assertIsInstance(raised, error, raised)
        self.check_nothing_happened()
        return str(raised)

    def test_a_failing_work_function_changes_nothing(self) -> None:
        def work(txn: Transaction, out: ChangeOutbox) -> None:
            txn.execute("INSERT INTO changes VALUES (%s)", ("@a",))
            out.invalidate("get_user", ("@a",))
            out.invalidate_all("get_orders")
            raise ZeroDivisionError

        client = self.client("REPLICATE")
        self.refused(ZeroDivisionError, work)
        self.assertEqual(client.rows(), [])

    def test_an_unavailable_database_changes_nothing(self) -> None:
        self.site.store.away = True
        (raised,) = self.run_changes(lambda txn, out: out.invalidate("get_user", ("@a",)))
        self.assertIn("a test says so", str(raised))
        self.site.store.away = False
        self.check_nothing_happened()

    def test_refuses_bad_keys(self) -> None:
        for keys, reason in (
            (("@a", "more"), "its keys have 1 parts, 2 were given"),
            ("@a", r"write \('@a',\), a key is a tuple"),
            (b"@a", r"a key is a tuple"),
            ((["@a"],), "has parts that no cached function can have"),
            ((("@a",),), "has parts that no cached function can have"),
            ((float("nan"),), "has parts that no cached function can have"),
            (("nul \0",), "NUL"),
            (("\ud800",), "surrogate"),
        ):
            with self.subTest(repr(keys)):
                said = self.refused(
                    BadInvalidation, lambda txn, out, k=keys: out.invalidate("get_user", k)
                )
                self.assertRegex(
                    said, f"^cache 'get_user' cannot be invalidated like this: .*{reason}"
                )

    def test_refuses_bad_cache_names(self) -> None:
        for name in ("", "x" * 256, "line\nbreak", "nul\0"):
            with self.subTest(name[:20]):
                said = self.refused(
                    BadInvalidation, lambda txn, out, n=name: out.invalidate(n, ("@a",))
                )
                self.assertIn("this is no name of a cache", said)
                self.assertLess(len(said), 200)
                self.refused(BadInvalidation, lambda txn, out, n=name: out.invalidate_all(n))

    def test_refuses_an_expansion_without_keys(self) -> None:
        for key in ((), None):
            work = (
                (lambda txn, out: out.invalidate_all("cs_cache_fake"))
                if key is None
                else (lambda txn, out: out.invalidate("cs_cache_fake", ()))
            )
            self.refused(BadKeys, work)

    def test_refuses_streams_that_were_not_passed(self) -> None:
        self.refused(NotNamed, lambda txn, out: out.append(ORDERS, [OrderRow("c1")]))

    def test_refuses_more_keys_than_a_transaction_may_have(self) -> None:
        def work(txn: Transaction, out: ChangeOutbox) -> None:
            for n in range(20_000):  # which no whole cache can stand for
                out.invalidate("cs_cache_fake", (f"!{n}",))

        self.refused(OutboxFull, work)


class ChangesWithUnknownOutcome(CoherentMasterCase):
    """The answer to a commit is lost, and the writer's name is not reacquired at once."""

    def lose(self, *key: Any, cache: str = "get_user") -> list[Any]:
        def work(txn: Transaction, out: ChangeOutbox) -> str:
            out.invalidate(cache, key)
            return "result"

        self.site.store.stop = ["transact committed", "open writer"]
        outcome = self.run_changes(work)
        self.site.store.stopped.pop().errback(LOST)
        return outcome

    def have_it_found(self) -> None:
        self.site.store.stopped.pop().callback(None)
        self.site.clock.pump([0.1] * 30)

    def test_invalidates_at_once_and_again_when_the_commit_is_found(self) -> None:
        outcome = self.lose("@a")
        self.assertEqual((outcome, self.site.cached("get_user")), ([], [("@b",)]))
        self.site.get_user("@a")
        self.have_it_found()
        self.assertEqual((outcome, self.site.cached("get_user")), (["result"], [("@b",)]))

    def test_marks_indexes_when_the_commit_is_found(self) -> None:
        rooms = self.site.caches.index("caches", "room_state")
        self.run_changes(lambda txn, out: out.invalidate("get_user", ("@a",)))
        self.lose("!r", cache="cs_cache_fake")
        self.assertEqual(rooms.all_since(1), [])
        self.have_it_found()
        self.assertEqual(rooms.all_since(1), ["!r"])


class ChangesOfOtherWriters(CoherentMasterCase):
    def test_invalidates_before_the_position_of_another_writer_moves(self) -> None:
        lease = done(self.site.store.open_writer("other", [CACHES]))
        seen: list[Any] = []
        publish = self.site.publisher.writer_advanced

        def watching(*arguments: Any) -> None:
            seen.append(self.site.cached("get_user"))
            publish(*arguments)

        self.site.publisher.writer_advanced = watching  # type: ignore[method-assign]

        def work(txn: Transaction, outbox: Outbox) -> None:
            outbox.append(CACHES, [CachesRow("get_user", ["@a"], 1)])

        done(lease.transact("elsewhere", [CACHES], work, lambda: {"caches": 0}))
        self.site.announcer.wake("caches")
        self.site.clock.pump([0.1] * 5)
        self.assertEqual(seen, [[("@b",)]])


class BuildingRows(SynchronousTestCase):
    def setUp(self) -> None:
        self.log = RecordingLog()
        self.caches = make_caches()
        self.caches.expand(Expansion("two", (Invalidates("get", whole),), least=2))
        self.caches.cached(name="get", by_name=True)(lambda a: a)
        coherence = Coherence(self.caches, CATALOGUE, self.log)
        self.rows = Invalidations(manual_clock(), self.caches, coherence, self.log)

    def test_accepts_unknown_names_and_logs_each_once(self) -> None:
        for _ in range(2):
            for name in ("elsewhere", "get", "cs_cache_fake"):
                self.assertEqual(self.rows.row(name, ("@a",)), CachesRow(name, ["@a"], 0))
        warnings = [text for level, text in self.log.lines if level == "warn"]
        self.assertEqual(warnings, ["cache elsewhere is invalidated, but not known here"])

    def test_logs_a_bounded_number_of_unknown_names(self) -> None:
        for n in range(MAX_WARNINGS + 50):
            self.rows.row(f"unknown{n}", None)
        self.assertEqual(len(self.log.lines), MAX_WARNINGS)

    def test_checks_the_keys_of_user_declared_expansions(self) -> None:
        self.assertEqual(self.rows.row("two", (1, 2)).keys, [1, 2])
        self.assertRaises(BadKeys, self.rows.row, "two", (1,))
        self.assertFalse(self.rows.has_whole("two"))
        self.assertTrue(self.rows.has_whole("get"))

    def test_builds_rows_that_the_table_and_the_wire_accept(self) -> None:
        codec = RowCodec(CACHES)
        for key in (None, (), ("@a", 1, 2.5, True, None), ["ü\u2028"]):
            codec.check_storable(self.rows.row("get", key))


class ChangesInPostgres(PostgresCase):
    """The same in a real database, with a table of the application."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql("CREATE TABLE users (name text PRIMARY KEY, age int)")
        self.sql("INSERT INTO users VALUES ('@a', 1), ('@b', 5)")
        process, log = self.process("master"), NullLog()
        await process.database.run("tables", lambda txn: ensure_tables(txn, [CACHES]))
        self.caches = make_caches()

        @self.caches.cached(by_name=True)
        async def get_age(name: str) -> int:
            return await process.database.run("get_age", lambda txn: age(txn, name), read_only=True)

        self.get_age = get_age
        coherence = Coherence(self.caches, CATALOGUE, log)
        self.positions_seen = RecordingPositionListener()
        announcer = Announcer(process.scheduler, process.store, [CACHES], self.positions_seen, log)
        self.writer = StreamWriter(
            process.scheduler,
            process.store,
            "master",
            [CACHES],
            CoherentCommitListener(coherence, "master", announcer),
            log,
        )
        await self.writer.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(self.writer.stop()))
        rows = Invalidations(process.scheduler, self.caches, coherence, log)
        self.changes = Changes(self.writer, rows)
        await self.get_age("@b")
        await self.get_age("@a")

    async def birthday(self, name: str, fails: bool = False) -> int:
        def work(txn: Transaction, out: ChangeOutbox) -> int:
            txn.execute("UPDATE users SET age = age + 1 WHERE name = %s", (name,))
            out.invalidate("get_age", (name,))
            out.invalidate("elsewhere", (name, 7))
            found = age(txn, name)
            if fails:
                raise ZeroDivisionError
            return found

        changed = await self.changes.run("birthday", work)
        self.assertEqual(changed.writer, "master")
        self.assertEqual(changed.tokens, {"caches": 1})
        return changed.result

    def held(self) -> list[str]:
        (cache,) = self.caches.named("get_age")
        return [name for (name,) in cache.entries]

    async def test_a_commit_invalidates_and_writes_rows(self) -> None:
        self.assertEqual(await self.birthday("@a"), 2)
        self.assertEqual(self.held(), ["@b"])
        self.assertEqual(await self.get_age("@a"), 2)
        rows = self.sql(
            f"SELECT json_agg(x ORDER BY stream_id, row_no) FROM {table_name(CACHES)} x"
        )
        self.assertEqual(
            [(row["stream_id"], row["cache_func"], row["keys"]) for row in rows],
            [(1, "get_age", ["@a"]), (1, "elsewhere", ["@a", 7])],
        )
        self.assertEqual(self.positions_seen.moves, [("caches", 0, 1, 2)])

    async def test_a_rollback_changes_nothing(self) -> None:
        with self.assertRaises(ZeroDivisionError):
            await self.birthday("@a", fails=True)
        self.assertEqual((self.held(), await self.get_age("@a")), (["@b", "@a"], 1))
        self.assertEqual(self.sql("SELECT age FROM users WHERE name = '@a'"), 1)
        self.assertEqual(self.sql(f"SELECT count(*) FROM {table_name(CACHES)}"), 0)

    async def test_drops_what_was_read_before_the_commit(self) -> None:
        """A load that reads while the transaction runs gets old data."""
        self.caches.invalidate("get_age", None)
        blocker = psycopg2.connect(self.dsn)
        self.addCleanup(blocker.close)
        with blocker.cursor() as cursor:
            cursor.execute("SELECT 1 FROM users WHERE name = '@a' FOR UPDATE")
        running = Deferred.fromCoroutine(self.birthday("@a"))
        self.assertEqual(await self.get_age("@a"), 1)
        self.assertEqual(self.held(), ["@a"])
        blocker.rollback()
        self.assertEqual(await running, 2)
        self.assertEqual(self.held(), [])
        self.assertEqual(await self.get_age("@a"), 2)


def age(txn: Transaction, name: str) -> int:
    return int(txn.execute("SELECT age FROM users WHERE name = %s", (name,)).fetchone()[0])


class RecordingPositionListener:
    """Records announced positions: stream, positions before and after, number of rows."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, int, int, int]] = []

    def writer_advanced(self, stream: Any, writer: str, prev: int, new: int, facts: Any) -> None:
        """Record the advance."""
        self.moves.append((stream.name, prev, new, sum(len(fact.rows) for fact in facts)))

    def linear_advanced(self, stream: Any, prev: int, new: int, facts: Any) -> None:
        """Do nothing."""
