"""Work that reserves its tokens in its first round trip, in a thread or as a short transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from synrepl.core.tokens import Range
from synrepl.storage.database import (
    OPENING_COLUMNS,
    DeferredScript,
    OpeningScript,
    Record,
    Transaction,
    UniqueViolation,
)
from synrepl.storage.outbox import Outbox
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.short_work import NotShort, Opening, ShortWork
from synrepl.storage.store import Drained, Fenced, TransactionResult
from synrepl.storage.tables import sequence_name
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from tests.storage.postgres import PostgresCase
from tests.storage.samples import NOTES, note

CHANGE = DeferredScript(["INSERT INTO changes VALUES (%s)"])
STREAMS = (NOTES, BACKFILL)


class Changing(ShortWork[str]):
    """Changes a table and appends facts, with tokens reserved early.

    :param rows: of facts of ``notes``
    :param is_short: whether it can be a short transaction
    :param is_there: whether the opening returns a row
    :ivar calls: how it was run
    """

    def __init__(self, *texts: str, is_short: bool = True, is_there: bool = True) -> None:
        self.texts = texts
        self.is_short = is_short
        self.is_there = is_there
        self.calls: list[str] = []

    def __call__(self, txn: Transaction, outbox: Outbox) -> str:
        opening = self._opening(outbox)
        self.calls.append("late" if opening is None else "called")
        return self._finish(
            txn, outbox, None if opening is None else txn.execute(*opening).fetchone_or_none()
        )

    def opening(self, outbox: Outbox) -> Opening | None:
        return self._opening(outbox) if self.is_short else None

    def finish(self, txn: Transaction, outbox: Outbox, row: Record | None) -> str:
        self.calls.append("finished")
        return self._finish(txn, outbox, row)

    def _opening(self, outbox: Outbox) -> Opening | None:
        tokens = outbox.reserve_early()
        if tokens is None:
            return None
        sql = f"SELECT {tokens.column}, {OPENING_COLUMNS} WHERE %s"
        return Opening(OpeningScript([sql]), (*tokens.params, self.is_there))

    def _finish(self, txn: Transaction, outbox: Outbox, row: Record | None) -> str:
        if outbox.early is not None:
            if row is None:
                raise NotShort
            outbox.early.take(row[0])
        txn.execute(CHANGE, (",".join(self.texts),))
        for text in self.texts:
            outbox.append(NOTES, [note(text)])
        return "done"


class EarlyTokensInPostgres(PostgresCase):
    """Each way to run it does the same."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql("CREATE TABLE changes (what text PRIMARY KEY)")
        self.one = self.process("one")
        self.lease = await self.one.store.open_writer("w1", STREAMS)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.lease.close()))
        await self.until(lambda: self.one.short.is_idle)

    def begin(self) -> dict[str, int]:
        return {"notes": 0, "backfill": 0}

    async def transact(
        self, work: Changing, streams: Sequence[Stream] = (NOTES,)
    ) -> TransactionResult[str]:
        return await self.lease.transact("a test", streams, work, self.begin)

    async def stored(self) -> list[tuple[int, str]]:
        page: Any = await self.one.store.page(NOTES, Range(0, 1000), None, 100)
        return [(fact.token, row.text) for fact in page.facts for row in fact.rows]

    def changes(self) -> list[str]:
        return self.sql("SELECT array_agg(what ORDER BY what) FROM changes") or []

    async def test_the_fact_gets_the_token_that_was_reserved(self) -> None:
        for number, (work, call) in enumerate(
            [(Changing("short"), "finished"), (Changing("long", is_short=False), "called")], 1
        ):
            done = await self.transact(work)
            self.assertEqual((done.result, work.calls), ("done", [call]))
            self.assertEqual([fact.token for fact in done.facts["notes"]], [number])
        self.assertEqual(await self.stored(), [(1, "short"), (2, "long")])
        self.assertEqual(self.changes(), ["long", "short"])
        seen = await self.one.store.observe([NOTES])
        self.assertEqual((seen["notes"].last, seen["notes"].writers["w1"].holders), (2, ()))

    async def test_a_token_without_a_fact_remains_unused(self) -> None:
        done = await self.transact(Changing("a"), STREAMS)
        self.assertEqual(list(done.facts), ["notes"])
        self.assertEqual(self.sql(f"SELECT last_value FROM {sequence_name(BACKFILL)}"), -1)
        row = BackfillRow("$e", "!r", "m", None, None, None)
        await self.lease.transact(
            "a test", STREAMS, lambda txn, out: out.append(BACKFILL, [row]), self.begin
        )
        page = await self.one.store.page(BACKFILL, Range(0, 1000), None, 100)
        self.assertEqual([fact.token for fact in page.facts], [2])

    async def test_several_facts_of_a_stream_get_tokens_after_the_work(self) -> None:
        work = Changing("a", "b", is_short=False)
        done = await self.transact(work)
        self.assertEqual([fact.token for fact in done.facts["notes"]], [2, 3])
        await self.refused(Changing("c", "d"), NotShort)
        self.assertEqual(await self.stored(), [(2, "a"), (3, "b")])

    async def test_nothing_is_reserved_without_a_row(self) -> None:
        await self.refused(Changing("a", is_there=False), NotShort)
        await self.refused(Changing("a", is_there=False, is_short=False), NotShort)
        self.assertFalse(self.sql(f"SELECT is_called FROM {sequence_name(NOTES)}"))
        self.assertEqual((await self.stored(), self.changes()), ([], []))

    async def test_tokens_that_the_table_has_are_passed_over(self) -> None:
        await self.transact(Changing("a"))
        for work in (Changing("b"), Changing("c", is_short=False)):
            self.sql(f"SELECT setval('{sequence_name(NOTES)}', 1, false)")
            await self.transact(work)
            self.assertEqual(work.calls[-1], "late")
        self.assertEqual(await self.stored(), [(1, "a"), (2, "b"), (3, "c")])

    async def test_a_unique_violation_of_the_caller_is_not_retried(self) -> None:
        await self.transact(Changing("a"))
        work = Changing("a")
        await self.refused(work, UniqueViolation)
        self.assertEqual(work.calls, ["finished"])
        self.assertEqual(await self.stored(), [(1, "a")])

    async def test_names_the_stream_whose_writer_is_fenced_off_or_drained(self) -> None:
        for change, error in (("draining = true", Drained), ("epoch = epoch + 1", Fenced)):
            self.sql(f"UPDATE synrepl._writers SET {change} WHERE stream = 'notes'")
            for is_short in (True, False):
                found = await self.refused(Changing("a", is_short=is_short), error, STREAMS)
                self.assertEqual(found.facts["stream"], "notes")
        self.assertEqual((await self.stored(), self.changes()), ([], []))

    async def test_a_store_without_short_transactions_calls_the_work(self) -> None:
        store = PostgresStore(self.one.scheduler, self.one.database, self.one.open_session, "one")
        lease = await store.open_writer("w2", [NOTES])
        work = Changing("a")
        await lease.transact("a test", [NOTES], work, self.begin)
        self.assertEqual(work.calls, ["called"])
        await lease.close()

    async def refused(
        self, work: Changing, error: type[Exception], streams: Sequence[Stream] = (NOTES,)
    ) -> Any:
        await self.until(lambda: self.one.short.is_idle)  # it connects again after an error
        with self.assertRaises(error) as caught:
            await self.transact(work, streams)
        return caught.exception
