"""The in-memory store: the contract, and its own features."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range, Token
from synrepl.storage.database import CommitUnknown, UniqueViolation
from synrepl.storage.memory.lease import MemoryLease
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import (
    AppendResult,
    DatabaseAway,
    Draft,
    FactStore,
    Fenced,
    KeyReused,
    Trimmed,
)
from synrepl.streams.definition import Fact, Stream
from tests.storage.contract import EVERY, FactStoreContract
from tests.storage.contract_failover import FailoverContract
from tests.storage.samples import NOTES, STREAMS, note
from tests.storage.skipping_scheduler import SkippingScheduler


class MemoryStoreContract(FailoverContract, FactStoreContract, TestCase):
    """The contract that the PostgreSQL store also fulfils."""

    streams = STREAMS

    async def make_store(self, holder: str) -> FactStore:
        if not hasattr(self, "memory"):
            self.scheduler = SkippingScheduler()
            self.memory = MemoryStore(self.scheduler, holder=holder)
        return self.memory

    async def pass_time(self, seconds: float) -> None:
        self.scheduler.time.advance(seconds)

    async def cut(self, lease: Any) -> None:
        lease.crash()

    async def promote(self, lacks: Stream, above: Token) -> None:
        self.memory.server.promote()
        self.memory.lose(lacks, above)

    async def set_sequence(self, stream: Stream, token: Token) -> None:
        self.memory.set_sequence(stream, token)


class SteppedStore(MemoryStore):
    """Stops at the steps that a test names, until the test resumes it."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        super().__init__(TwistedScheduler(cast(Any, self.clock)), **settings)
        self.stop_at: set[str] = set()
        self.waiting: deque[Deferred[None]] = deque()

    async def step(self, what: str) -> None:
        if what in self.stop_at:
            self.waiting.append(Deferred())
            await self.waiting[-1]

    def go_on(self, at: int = 0) -> None:
        self.take(at).callback(None)

    def fail(self, error: Exception) -> None:
        self.take(0).errback(error)

    def take(self, at: int) -> Deferred[None]:
        found = self.waiting[at]
        del self.waiting[at]
        return found


class StepsOfOperations(TestCase):
    """Events between the atomic parts of an operation."""

    timeout = 20

    async def setUp(self) -> None:  # type: ignore[override]
        self.store = SteppedStore()
        self.lease = await self.store.open_writer("w1", [NOTES])

    def append(
        self, text: str, key: str | None = None, lease: MemoryLease | None = None
    ) -> Deferred[Any]:
        draft = Draft([[note(text)]], key)
        return Deferred.fromCoroutine((lease or self.lease).append(NOTES, [draft], 0))

    async def texts(self) -> list[tuple[Token, str]]:
        page: Any = await self.store.page(NOTES, Range(0, EVERY), None, 1000)
        return [(fact.token, row.text) for fact in page.facts for row in fact.rows]

    async def holders(self) -> int:
        seen = await self.store.observe([NOTES])
        return len(seen["notes"].writers["w1"].holders)

    async def test_commits_become_visible_out_of_order(self) -> None:
        self.store.stop_at = {"append reserved"}
        first, second = self.append("first"), self.append("second")
        self.assertEqual((await self.texts(), await self.holders()), ([], 2))
        self.assertEqual((await self.store.observe([NOTES]))["notes"].last, 2)
        self.store.go_on(1)
        await second
        self.assertEqual((await self.texts(), await self.holders()), ([(2, "second")], 1))
        self.store.go_on()
        await first
        self.assertEqual(await self.texts(), [(1, "first"), (2, "second")])
        self.assertEqual(await self.holders(), 0)

    async def test_failing_before_and_after_the_commit(self) -> None:
        for step, error, texts in (
            ("append", DatabaseAway(where="here", reason="cut"), []),
            ("append reserved", DatabaseAway(where="here", reason="cut"), []),
            ("append committed", CommitUnknown(name="x", where="here", xid=1, reason="cut"), ["a"]),
        ):
            self.store.stop_at = {step}
            appending = self.append("a")
            self.store.fail(error)
            await self.assertFailure(appending, type(error))
            self.assertEqual([text for _, text in await self.texts()], texts)
            self.assertEqual(await self.holders(), 0)

    async def test_a_key_whose_first_use_is_not_committed_yet(self) -> None:
        self.store.stop_at = {"append reserved"}
        first, second = self.append("a", "k"), self.append("a", "k")
        other = self.append("b", "k")
        self.store.go_on(1)
        written = (await second)[0]
        self.store.go_on()
        self.store.go_on()
        await self.assertFailure(other, KeyReused)
        self.store.go_on()  # the first request is retried, and finds the answer
        self.assertEqual(await first, [AppendResult(written.tokens, "w1", replayed=True)])
        self.assertEqual((await self.texts(), await self.holders()), ([(2, "a")], 0))

    async def test_does_not_fence_a_writer_with_a_running_transaction(self) -> None:
        self.store.stop_at = {"append reserved"}
        appending = self.append("late")
        self.lease.crash()
        self.assertFalse(await self.store.fence(NOTES, "w1"))
        self.assertEqual(await self.holders(), 1)
        self.store.go_on()
        await appending
        self.assertTrue(await self.store.fence(NOTES, "w1"))
        await self.assertFailure(self.append("too late"), Fenced)
        self.assertEqual(await self.texts(), [(1, "late")])

    async def test_a_successor_waits_for_transactions(self) -> None:
        self.store.stop_at = {"append reserved"}
        appending = self.append("late")
        self.lease.crash()
        opening = Deferred.fromCoroutine(self.store.open_writer("w1", [NOTES]))
        self.store.clock.pump([0.1] * 100)
        self.assertNoResult(opening)
        self.store.go_on()
        await appending
        self.store.clock.advance(0.1)
        self.successResultOf(opening)

    async def test_a_successor_waits_for_the_name(self) -> None:
        opening = Deferred.fromCoroutine(self.store.open_writer("w1", [NOTES]))
        self.store.clock.advance(1)
        self.assertNoResult(opening)
        await self.lease.close()
        self.store.clock.advance(0.1)
        self.successResultOf(opening)

    async def test_killing_rolls_back(self) -> None:
        self.store.stop_at = {"append reserved"}
        tokens = await self.lease.reserve(NOTES, 2, 0)
        appending = self.append("never")
        self.lease.kill()
        self.assertEqual(await self.holders(), 0)
        self.assertTrue(await self.store.fence(NOTES, "w1"))
        self.store.go_on()
        await self.assertFailure(appending, DatabaseAway)
        with self.assertRaises(DatabaseAway):
            await self.lease.write(NOTES, [Fact(tokens[0], "w1", (note("never"),))])
        self.assertEqual(await self.texts(), [])

    async def test_a_session_lost_while_reserving_holds_nothing(self) -> None:
        self.store.stop_at = {"reserved"}
        reserving = Deferred.fromCoroutine(self.lease.reserve(NOTES, 2, 0))
        self.assertEqual(await self.holders(), 1)
        self.lease.crash()
        self.assertEqual(await self.holders(), 0)
        self.store.go_on()
        await self.assertFailure(reserving, DatabaseAway)

    async def test_an_error_while_reserving_holds_nothing(self) -> None:
        self.store.stop_at = {"reserved"}
        reserving = Deferred.fromCoroutine(self.lease.reserve(NOTES, 2, 0))
        self.store.fail(DatabaseAway(where="here", reason="cut"))
        await self.assertFailure(reserving, DatabaseAway)
        self.assertEqual(await self.holders(), 0)

    async def test_refuses_a_second_fact_at_a_token(self) -> None:
        tokens = await self.lease.reserve(NOTES, 1, 0)
        fact = Fact(tokens[0], "w1", (note("a"),))
        await self.lease.write(NOTES, [fact])
        with self.assertRaises(UniqueViolation):
            await self.lease.write(NOTES, [fact])
        self.assertEqual(await self.texts(), [(1, "a")])


class LimitsOfTheMemoryStore(TestCase):
    """Limits on memory use."""

    def setUp(self) -> None:
        self.store = MemoryStore(SkippingScheduler(), max_rows_per_stream=10, max_keys=3)

    async def test_dropped_facts_are_reported_as_trimmed(self) -> None:
        lease = await self.store.open_writer("w1", [NOTES])
        for n in range(100):
            await lease.append(NOTES, [Draft([[note(str(n))]])], 0)
            with self.subTest(n):
                after = await self.trimmed()
                page = await self.store.page(NOTES, Range(after, EVERY), None, 1000)
                self.assertEqual([f.token for f in page.facts], list(range(after + 1, n + 2)))
                self.assertLessEqual(len(page.facts), 10)
                self.assertGreaterEqual(len(page.facts), min(n + 1, 7))
        with self.assertRaises(Trimmed) as caught:
            await self.store.page(NOTES, Range(after - 1, EVERY), None, 1000)
        self.assertEqual(caught.exception.facts["trimmed"], after)

    async def trimmed(self) -> Token:
        try:
            await self.store.page(NOTES, Range(0, 0), None, 1)
        except Trimmed as error:
            return int(str(error.facts["trimmed"]))
        return 0

    async def test_a_fact_larger_than_the_bound_stays_while_it_is_the_newest(self) -> None:
        lease = await self.store.open_writer("w1", [NOTES])
        large = [note(str(n)) for n in range(50)]
        await lease.append(NOTES, [Draft([[note("a")], large])], 0)
        page = await self.store.page(NOTES, Range(1, EVERY), None, 5)
        self.assertEqual([(f.token, len(f.rows)) for f in page.facts], [(2, 50)])
        await lease.append(NOTES, [Draft([[note("b")]])], 0)
        page = await self.store.page(NOTES, Range(2, EVERY), None, 5)
        self.assertEqual([f.token for f in page.facts], [3])

    async def test_drops_a_fact_below_the_trimmed_position(self) -> None:
        lease = await self.store.open_writer("w1", [NOTES])
        tokens = await lease.reserve(NOTES, 1, 0)
        await lease.append(NOTES, [Draft([[note(str(n))] for n in range(30)])], 0)
        await lease.write(NOTES, [Fact(tokens[0], "w1", (note("late"),))])
        with self.assertRaises(Trimmed):
            await self.store.page(NOTES, Range(0, EVERY), None, 1000)
        self.assertEqual(await self.store.reached(NOTES, Range(0, await self.trimmed())), {})

    async def test_a_reader_of_one_writer_is_refused_only_for_its_trimmed_facts(self) -> None:
        idle, late = [await self.store.open_writer(name, [NOTES]) for name in ("idle", "late")]
        await idle.append(NOTES, [Draft([[note("old")]])], 0)
        (reserved,) = await late.reserve(NOTES, 1, 0)
        busy = await self.store.open_writer("busy", [NOTES])
        await busy.append(NOTES, [Draft([[note(str(n))] for n in range(30)])], 0)
        page = await self.store.page(NOTES, Range(1, EVERY), "idle", 10)
        self.assertEqual(page.facts, ())
        page = await self.store.page(NOTES, Range(0, EVERY), "late", 10)
        self.assertEqual(page.facts, ())
        await late.write(NOTES, [Fact(reserved, "late", (note("gone at once"),))])
        for writer, gone in (("idle", 1), ("late", reserved)):
            with self.assertRaises(Trimmed) as caught:
                await self.store.page(NOTES, Range(0, EVERY), writer, 10)
            self.assertEqual(caught.exception.facts["trimmed"], gone)

    async def test_the_oldest_keys_are_forgotten(self) -> None:
        lease = await self.store.open_writer("w1", [NOTES])
        for n in range(5):
            await lease.append(NOTES, [Draft([[note("a")]], key=str(n))], 0)
        replayed = [
            (await lease.append(NOTES, [Draft([[note("a")]], key=str(n))], 0))[0].replayed
            for n in (4, 3, 2, 1)
        ]
        self.assertEqual(replayed, [True, True, True, False])
