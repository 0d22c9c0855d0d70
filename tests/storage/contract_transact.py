"""The contract of every lease that runs callers' transactions.

Mix :class:`TransactContract` into a trial test case that says how to make one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import HookTooLate, NotNamed, OutboxClosed
from synrepl.storage.store import (
    DatabaseAway,
    FactStore,
    Fenced,
    Observation,
    Outbox,
    TransactionResult,
    WriterLease,
)
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import BadRow
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from synrepl.streams.synapse.typing import TypingRow
from tests.storage.samples import EVERYTHING, NOTES, note, rows_of

EVERY = 2**40
CHANGE = "INSERT INTO changes (what) VALUES (%s)"

Work = Callable[[Transaction, Outbox], Any]

if TYPE_CHECKING:
    Base = TestCase
else:
    Base = object


class RefusedWork(Exception):
    """Raised by a work function."""


class TransactContract(Base):
    """The tests. Implementations override the methods that raise NotImplementedError."""

    timeout = 60

    async def make_store(self) -> FactStore:
        """The store; it supports :data:`CHANGE`."""
        raise NotImplementedError

    async def changes(self) -> list[str]:
        """The committed changes, sorted."""
        raise NotImplementedError

    async def cut(self, lease: Any) -> None:
        """Cut a lease's session; returns once the lease knows."""
        raise NotImplementedError

    async def set_sequence(self, stream: Stream, token: Token) -> None:
        """Set the sequence of a stream to another token."""
        raise NotImplementedError

    async def setUp(self) -> None:  # type: ignore[override]
        self.store = await self.make_store()
        self._leases: list[WriterLease] = []
        self.lease = await self.open()

    async def tearDown(self) -> None:  # type: ignore[override]
        for lease in self._leases:
            with suppress(DatabaseAway):  # cut by the test
                await lease.close()

    async def open(self) -> WriterLease:
        lease = await self.store.open_writer("w1", [NOTES, BACKFILL, EVERYTHING])
        self._leases.append(lease)
        return lease

    async def transact(
        self,
        work: Work,
        *streams: Stream,
        floors: Mapping[str, Token] | None = None,
        lease: WriterLease | None = None,
    ) -> TransactionResult[Any]:
        named = streams or (NOTES,)
        floors = {stream.name: 0 for stream in named} | dict(floors or {})
        return await (lease or self.lease).transact("a test", named, work, lambda: floors)

    async def facts(self, stream: Stream = NOTES) -> list[Fact]:
        return list((await self.store.page(stream, Range(0, EVERY), None, 100_000)).facts)

    async def look(self, stream: Stream = NOTES) -> Observation:
        return (await self.store.observe([stream]))[stream.name]

    async def check_nothing_happened(self) -> None:
        self.assertEqual((await self.facts(), await self.changes()), ([], []))
        self.assertEqual((await self.look()).writers["w1"].holders, ())

    async def test_commits_a_change_with_facts_of_several_streams(self) -> None:
        row = BackfillRow("$e", "!r", "m", None, None, None)
        everything = tuple(rows_of(EVERYTHING))

        def work(txn: Transaction, outbox: Outbox) -> str:
            outbox.append(NOTES, [note("a"), note("b")])
            txn.execute(CHANGE, ("changed",))
            outbox.append(BACKFILL, [row])
            outbox.append(NOTES, [])
            outbox.append(NOTES, [note("c")])
            outbox.append(EVERYTHING, everything)
            return "result"

        done = await self.transact(work, NOTES, BACKFILL, EVERYTHING)
        self.assertEqual(done.result, "result")
        self.assertEqual(await self.changes(), ["changed"])
        self.assertEqual(
            [fact.rows for fact in done.facts["notes"]],
            [(note("a"), note("b")), (), (note("c"),)],
        )
        tokens = [fact.token for fact in done.facts["notes"]]
        self.assertEqual(tokens, sorted(set(tokens)))
        self.assertEqual(await self.facts(), [fact for fact in done.facts["notes"] if fact.rows])
        self.assertEqual(await self.facts(BACKFILL), list(done.facts["backfill"]))
        self.assertEqual([fact.rows for fact in done.facts["backfill"]], [(row,)])
        self.assertEqual(await self.facts(EVERYTHING), list(done.facts["everything"]))
        seen = await self.look()
        self.assertEqual((seen.last, seen.writers["w1"].holders), (tokens[-1], ()))

    async def test_commits_many_facts(self) -> None:
        def work(txn: Transaction, outbox: Outbox) -> None:
            for n in range(500):
                outbox.append(NOTES, [note(str(n))])

        done = await self.transact(work)
        self.assertEqual(len(done.facts["notes"]), 500)
        self.assertEqual(await self.facts(), list(done.facts["notes"]))

    async def test_accepts_a_stream_named_twice(self) -> None:
        done = await self.transact(lambda txn, out: out.append(NOTES, [note("a")]), NOTES, NOTES)
        self.assertEqual(await self.facts(), list(done.facts["notes"]))
        self.assertEqual(len(done.facts["notes"]), 1)

    async def test_commits_a_change_without_facts(self) -> None:
        done = await self.transact(lambda txn, out: txn.execute(CHANGE, ("x",)) and None)
        self.assertEqual((done.result, dict(done.facts)), (None, {}))
        self.assertEqual((await self.changes(), await self.facts()), (["x"], []))
        self.assertEqual((await self.look()).last, 0)

    async def test_work_that_fails_changes_nothing(self) -> None:
        def work(txn: Transaction, outbox: Outbox) -> None:
            txn.execute(CHANGE, ("x",))
            outbox.append(NOTES, [note("a")])
            raise RefusedWork

        with self.assertRaises(RefusedWork):
            await self.transact(work)
        await self.check_nothing_happened()
        await self.transact(lambda txn, out: out.append(NOTES, [note("goes on")]))
        self.assertEqual(len(await self.facts()), 1)

    async def test_refused_facts_roll_back_the_change(self) -> None:
        cases: list[tuple[type[Exception], Stream, Any]] = [
            (NotNamed, BACKFILL, BackfillRow("$e", "!r", "m", None, None, None)),
            (BadRow, NOTES, TypingRow("!r", [])),
            (BadRow, NOTES, note("NUL \0")),
            (BadRow, NOTES, note("too large", 2**63)),
        ]
        for error, stream, row in cases:
            raised_in_work: list[Exception] = []

            def work(txn: Transaction, outbox: Outbox) -> None:
                txn.execute(CHANGE, ("x",))
                outbox.append(NOTES, [note("good")])
                try:
                    outbox.append(stream, [row])  # noqa: B023
                except Exception as refused:
                    raised_in_work.append(refused)  # noqa: B023
                    raise

            with self.assertRaises(error) as caught:
                await self.transact(work)
            self.assertEqual(raised_in_work, [caught.exception])
            await self.check_nothing_happened()

    async def test_refuses_facts_after_the_work_returned(self) -> None:
        kept: list[Outbox] = []
        await self.transact(lambda txn, outbox: kept.append(outbox))
        with self.assertRaises(OutboxClosed):
            kept[0].append(NOTES, [note("late")])

    async def test_runs_several_transactions_at_once(self) -> None:
        def work(n: int) -> Work:
            def run(txn: Transaction, outbox: Outbox) -> int:
                txn.execute(CHANGE, (f"change {n}",))
                outbox.append(NOTES, [note(f"first {n}")])
                outbox.append(NOTES, [note(f"second {n}")])
                return n

            return run

        running = [Deferred.fromCoroutine(self.transact(work(n))) for n in range(12)]
        done: list[TransactionResult[int]] = await gatherResults(running)
        self.assertEqual([each.result for each in done], list(range(12)))
        self.assertEqual(await self.changes(), sorted(f"change {n}" for n in range(12)))
        facts = sorted((f for each in done for f in each.facts["notes"]), key=lambda f: f.token)
        self.assertEqual(await self.facts(), facts)
        self.assertEqual(len({fact.token for fact in facts}), 24)
        for n, each in enumerate(done):
            first, second = each.facts["notes"]
            self.assertEqual(
                (first.rows, second.rows), ((note(f"first {n}"),), (note(f"second {n}"),))
            )
            self.assertLess(first.token, second.token)

    async def test_a_fenced_writer_changes_nothing(self) -> None:
        await self.cut(self.lease)
        # Until it is fenced, it may still write.
        await self.transact(lambda txn, out: out.append(NOTES, [note("in time")]))
        await self.open()
        with_facts: Work = lambda txn, out: (  # noqa: E731
            txn.execute(CHANGE, ("x",)),
            out.append(NOTES, [note("late")]),
        )
        for work in (with_facts, lambda txn, out: txn.execute(CHANGE, ("x",)) and None):
            for streams in ((NOTES,), (NOTES, BACKFILL)):
                with self.assertRaises(Fenced) as caught:
                    await self.transact(work, *streams)
                self.assertIn("writer 'w1' of stream", str(caught.exception))
        self.assertEqual(await self.changes(), [])
        self.assertEqual([fact.rows for fact in await self.facts()], [(note("in time"),)])

    async def test_tokens_are_above_the_floors(self) -> None:
        def work(txn: Transaction, outbox: Outbox) -> None:
            outbox.append(NOTES, [note("a")])
            outbox.append(BACKFILL, [BackfillRow("$e", "!r", "m", None, None, None)])

        floors = {"notes": 50, "backfill": 70}
        done = await self.transact(work, NOTES, BACKFILL, floors=floors)
        tokens = {stream: [f.token for f in facts] for stream, facts in done.facts.items()}
        self.assertEqual(tokens, {"notes": [51], "backfill": [71]})
        self.assertEqual(dict(await self.store.reached(BACKFILL, Range(0, EVERY))), {"w1": 71})

    async def test_repairs_a_sequence_behind_the_table(self) -> None:
        for rows in ([note("a")], [note("a"), note("b")]):
            for _ in range(5):
                await self.transact(lambda txn, out: out.append(NOTES, rows))  # noqa: B023
            before = await self.facts()
            await self.set_sequence(NOTES, 1)

            def work(txn: Transaction, outbox: Outbox) -> None:
                txn.execute(CHANGE, (f"with {len(rows)}",))  # noqa: B023
                outbox.append(NOTES, rows)  # noqa: B023

            done = await self.transact(work)
            self.assertGreater(done.facts["notes"][0].token, before[-1].token)
            self.assertEqual(await self.facts(), [*before, *done.facts["notes"]])
        self.assertEqual(await self.changes(), ["with 1", "with 2"])

    async def test_work_writes_the_tokens_of_its_facts_into_its_own_tables(self) -> None:
        row = BackfillRow("$e", "!r", "m", None, None, None)

        def work(txn: Transaction, outbox: Outbox) -> None:
            def keep(txn: Transaction, tokens: Mapping[str, Any]) -> None:
                for stream, several in tokens.items():
                    txn.execute(CHANGE, (f"{stream} {list(several)}",))

            outbox.after_reserving(keep)
            outbox.after_reserving(lambda txn, tokens: txn.execute(CHANGE, (str(len(tokens)),)))
            outbox.append(NOTES, [note("a"), note("b")])
            outbox.append(BACKFILL, [row])
            outbox.append(NOTES, [])

        done = await self.transact(work, NOTES, BACKFILL, EVERYTHING)
        tokens = {name: [fact.token for fact in facts] for name, facts in done.facts.items()}
        self.assertEqual(len(tokens["notes"]), 2)
        self.assertEqual(
            await self.changes(),
            sorted([f"notes {tokens['notes']}", f"backfill {tokens['backfill']}", "2"]),
        )
        await self.set_sequence(NOTES, 1)
        again = await self.transact(work, NOTES, BACKFILL)
        token = again.facts["notes"][-1].token
        self.assertGreater(token, tokens["notes"][-1])
        self.assertIn(f"notes {[token - 1, token]}", await self.changes())
        self.assertEqual(len(await self.changes()), 6)

    async def test_a_failure_after_reserving_changes_nothing(self) -> None:
        def work(txn: Transaction, outbox: Outbox) -> None:
            def fail(txn: Transaction, tokens: Mapping[str, Any]) -> None:
                txn.execute(CHANGE, ("reserved",))
                raise RefusedWork

            txn.execute(CHANGE, ("x",))
            outbox.append(NOTES, [note("a")])
            outbox.after_reserving(fail)

        with self.assertRaises(RefusedWork):
            await self.transact(work)
        await self.check_nothing_happened()

    async def test_refuses_a_call_after_reserving_when_the_work_has_returned(self) -> None:
        kept: list[Outbox] = []
        await self.transact(lambda txn, outbox: kept.append(outbox))
        with self.assertRaises(HookTooLate):
            kept[0].after_reserving(lambda txn, tokens: None)
