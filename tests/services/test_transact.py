"""Transactions of callers at a writer: settled, announced, and answered truthfully."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range
from synrepl.positions.ledger import Request
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.writing.stream_writer import NoStreams, NotAWriter, StreamWriter, WriterAway
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.outbox import KeptInMemory, Outbox
from synrepl.storage.store import DatabaseAway, Fenced, TransactionResult
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.typing import TYPING
from tests.services.world import NullLog
from tests.storage.recorded_changes import RecordedChanges

JOBS = declare("jobs", {"name": "text"})
LOGS = declare("logs", {"name": "text"})
Job, Line = JOBS.kinds[UNTAGGED], LOGS.kinds[UNTAGGED]

LOST = CommitUnknown(where="memory", name="x", xid="7", reason="cut")
AWAY = DatabaseAway(where="memory", reason="cut")

#: Answers that mean it.
NOTHING_WRITTEN = (WriterAway, DatabaseAway, Fenced)


class InterruptibleStore(MemoryStore):
    """Suspends operations, and loses their answers, at chosen steps.

    :ivar stop: steps at which the next operations are suspended
    """

    def __init__(self, scheduler: TwistedScheduler) -> None:
        self.table: list[Any] = []
        super().__init__(scheduler, begin_changes=lambda: RecordedChanges(self.table))
        self.stop: list[str] = []
        self.stopped: list[Deferred[None]] = []

    async def step(self, what: str) -> None:
        if what in self.stop:
            self.stop.remove(what)
            stopped: Deferred[None] = Deferred()
            self.stopped.append(stopped)
            await stopped


class RecordingAnnouncer(Announcer):
    """Announces, and records what the writer reported."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unknown_outcomes: list[tuple[str, tuple[Row, ...]]] = []
        self.announced: list[str] = []

    def settled(self, stream: Stream, tokens: Sequence[int], facts: Sequence[Fact]) -> None:
        if facts:
            self.announced.append(stream.name)
        super().settled(stream, tokens, facts)

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        self.unknown_outcomes.append((stream.name, tuple(rows)))
        super().outcome_unknown(stream, rows)


class RecordingListener:
    """Keeps what is announced of each stream."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {"jobs": [], "logs": [], "typing": []}

    def writer_advanced(
        self, stream: Stream, writer: str, prev: int, new: int, facts: Sequence[Fact]
    ) -> None:
        self.tokens[stream.name] += [fact.token for fact in facts if fact.rows]

    def linear_advanced(
        self, stream: Stream, prev: int, new: int, facts: Sequence[Fact] | None
    ) -> None:
        """Not looked at."""


class WriterSite:
    """A writer that announces, on a store in memory."""

    def __init__(self, make_store: type[InterruptibleStore] = InterruptibleStore) -> None:
        self.clock = Clock()
        self.scheduler = TwistedScheduler(self.clock)  # type: ignore[arg-type]
        self.store = make_store(self.scheduler)
        self.listener = RecordingListener()
        streams = [JOBS, LOGS, TYPING]
        self.announcer = RecordingAnnouncer(
            self.scheduler, self.store, streams, self.listener, NullLog()
        )
        self.writer = StreamWriter(
            self.scheduler, self.store, "master", streams, self.announcer, NullLog()
        )
        self.start(self.writer.start())
        self.start(self.announcer.start())
        self.pump()

    def pump(self) -> None:
        self.clock.pump([0.1] * 30)

    def start(self, coroutine: Any) -> Deferred[Any]:
        deferred = Deferred.fromCoroutine(coroutine)
        self.outcome_of(deferred)
        return deferred

    def outcome_of(self, deferred: Deferred[Any]) -> list[Any]:
        """Filled with the result, or the exception, once there is one."""
        outcome: list[Any] = []

        def keep(result: Any) -> None:
            if isinstance(result, TransactionResult):
                result = result.result
            outcome.append(result.value if isinstance(result, Failure) else result)

        deferred.addBoth(keep)
        return outcome

    def transact(self, work: Any, *streams: Stream) -> list[Any]:
        return self.outcome_of(
            Deferred.fromCoroutine(self.writer.transact("a test", streams or (JOBS,), work))
        )

    def append(self, *names: str, key: str | None = None) -> list[Any]:
        facts = [[Job(name)] for name in names]
        return self.outcome_of(Deferred.fromCoroutine(self.writer.append(JOBS, facts, key)))

    def stored(self, stream: Stream = JOBS) -> list[tuple[int, str]]:
        page = self.outcome_of(
            Deferred.fromCoroutine(self.store.page(stream, Range(0, 10**6), None, 10**6))
        )[0]
        return [(fact.token, row.name) for fact in page.facts for row in fact.rows]

    def stop(self) -> None:
        self.start(self.announcer.stop())
        self.start(self.writer.stop())
        self.scheduler.stop()


def work(*names: str, change: str = "changed") -> Any:
    """Work that makes a change, and a fact of :data:`JOBS` for each name."""

    def run(txn: Transaction, outbox: Outbox) -> str:
        txn.execute("INSERT INTO changes VALUES (%s)", (change,))
        for name in names:
            outbox.append(JOBS, [Job(name)])
        return change

    return run


class TransactCase(TestCase):
    def setUp(self) -> None:
        self.place = WriterSite()
        self.store, self.writer = self.place.store, self.place.writer
        self.addCleanup(self.place.stop)

    def raised(self, outcome: list[Any], error: type[Exception]) -> None:
        self.assertEqual([type(each) for each in outcome], [error])

    def check_nothing_is_stuck(self) -> None:
        """All that is stored was announced, and nothing is open."""
        self.place.pump()
        for stream in (JOBS, LOGS):
            stored = list(dict(self.place.stored(stream)))
            self.assertEqual(self.place.listener.tokens[stream.name], stored)
            ledger = self.writer.ledger(stream.name)
            self.assertEqual((ledger.open_requests, ledger.outstanding), (0, 0))


class SettlingTransactions(TransactCase):
    """When all goes well, and when the work fails."""

    def test_announces_facts_of_two_streams_before_it_returns(self) -> None:
        def run(txn: Transaction, outbox: Outbox) -> str:
            work("a", "b")(txn, outbox)
            outbox.append(LOGS, [Line("x"), Line("y")])
            outbox.append(JOBS, [])
            return "result"

        announced: list[list[str]] = []
        running = Deferred.fromCoroutine(self.writer.transact("a test", [JOBS, LOGS], run))
        running.addCallback(lambda _: announced.append(list(self.place.announcer.announced)))
        self.assertEqual(announced, [["jobs", "logs"]])
        self.assertEqual(self.store.table, ["changed"])
        self.assertEqual(self.place.stored(LOGS), [(1, "x"), (1, "y")])
        self.assertEqual(self.writer.ledger("jobs").position, 3)
        self.check_nothing_is_stuck()

    def test_appends_nothing_if_the_work_fails(self) -> None:
        def run(txn: Transaction, outbox: Outbox) -> None:
            work("a")(txn, outbox)
            raise ZeroDivisionError

        self.raised(self.place.transact(run, JOBS, LOGS), ZeroDivisionError)
        self.assertEqual(self.store.table, [])
        self.place.append("b")
        self.check_nothing_is_stuck()

    def test_refuses_streams_that_cannot_be_part_of_a_transaction(self) -> None:
        other = declare("others", {"name": "text"})
        self.raised(self.place.transact(work(), JOBS, TYPING), KeptInMemory)
        self.raised(self.place.transact(work(), JOBS, other), NotAWriter)
        running = Deferred.fromCoroutine(self.writer.transact("a test", [], work()))
        self.raised(self.place.outcome_of(running), NoStreams)
        self.assertEqual(self.store.table, [])
        self.check_nothing_is_stuck()

    def test_a_position_waits_for_every_stream_that_may_be_appended_to(self) -> None:
        self.store.stop = ["transact reserved"]
        running = self.place.transact(work(), JOBS, LOGS)
        self.place.append("meanwhile")
        self.assertEqual(self.place.listener.tokens["jobs"], [])
        self.store.stopped[0].callback(None)
        self.assertEqual(running, ["changed"])
        self.assertEqual(self.place.listener.tokens["jobs"], [1])
        self.check_nothing_is_stuck()

    def test_a_position_does_not_wait_for_the_work(self) -> None:
        self.store.stop = ["transact"]
        running = self.place.transact(work("a"))
        self.place.append("meanwhile")
        self.assertEqual(self.place.listener.tokens["jobs"], [1])
        self.store.stopped[0].callback(None)
        self.assertEqual(running, ["changed"])
        self.assertEqual(self.place.listener.tokens["jobs"], [1, 2])
        self.check_nothing_is_stuck()

    def test_commits_may_be_out_of_order(self) -> None:
        self.store.stop = ["transact reserved"] * 2
        one, two = self.place.transact(work("a")), self.place.transact(work("b"))
        (appended,) = self.place.append("c")
        self.store.stopped[1].callback(None)
        self.assertEqual((one, two, appended.tokens), ([], ["changed"], [3]))
        self.assertEqual(self.place.listener.tokens["jobs"], [])
        self.store.stopped[0].callback(None)
        self.assertEqual(self.place.listener.tokens["jobs"], [1, 2, 3])
        self.check_nothing_is_stuck()

    def test_cancelling_the_wait_does_not_end_the_transaction(self) -> None:
        self.store.stop = ["transact reserved"]
        running = Deferred.fromCoroutine(self.writer.transact("a test", [JOBS], work("a")))
        running.cancel()
        self.raised(self.place.outcome_of(running), CancelledError)
        self.place.append("b")
        self.assertEqual(self.place.listener.tokens["jobs"], [])
        self.store.stopped[0].callback(None)
        self.assertEqual(self.store.table, ["changed"])
        self.check_nothing_is_stuck()

    def test_one_that_is_discarded_does_not_resume_who_waits_for_it(self) -> None:
        self.store.stop = ["transact reserved"]
        kept: list[Any] = []

        def spawn(name: str, coroutine: Any) -> None:
            coroutine.send(None)
            kept.append(coroutine)

        with patch.object(self.place.scheduler, "spawn", spawn):
            outcome = self.place.transact(work("a"))
        kept.pop().close()
        self.assertEqual(outcome, [])


class LosingTheAnswerToACommit(TransactCase):
    """Commits whose answer is lost."""

    def lose(self, at: str, running: Any) -> list[Any]:
        """Start something and lose its answer at a step."""
        self.store.stop.append(at)
        outcome: list[Any] = running()
        self.store.stopped.pop().errback(LOST)
        self.place.pump()
        return outcome

    def test_returns_the_result_if_it_was_committed(self) -> None:
        outcome = self.lose("transact committed", lambda: self.place.transact(work("a", "b")))
        self.assertEqual((outcome, self.store.table), (["changed"], ["changed"]))
        self.assertEqual(self.place.announcer.unknown_outcomes, [("jobs", (Job("a"), Job("b")))])
        self.check_nothing_is_stuck()

    def test_runs_again_if_it_was_rolled_back(self) -> None:
        outcome = self.lose("transact reserved", lambda: self.place.transact(work("a")))
        self.assertEqual((outcome, self.store.table), (["changed"], ["changed"]))
        self.assertEqual([name for _, name in self.place.stored()], ["a"])
        self.check_nothing_is_stuck()

    def test_raises_if_it_left_no_trace(self) -> None:
        def empty(txn: Transaction, outbox: Outbox) -> None:
            outbox.append(JOBS, [])

        for silent in (work(), empty):
            self.raised(
                self.lose("transact committed", lambda: self.place.transact(silent)),  # noqa: B023
                CommitUnknown,
            )
            self.assertEqual(self.place.announcer.unknown_outcomes, [])
            self.place.append("goes on")
            self.check_nothing_is_stuck()

    def test_does_not_take_its_facts_for_those_of_an_append(self) -> None:
        for committed in (False, True):
            for key in (None, f"key {committed}"):
                with self.subTest(committed=committed, key=key):
                    before = len(self.place.stored())
                    self.store.stop = ["transact committed"]
                    transacted = self.place.transact(work("theirs", "twice"))
                    appended = self.lose(
                        "append committed" if committed else "append reserved",
                        lambda: self.place.append("mine", "twice", key=key),  # noqa: B023
                    )
                    self.store.stopped.pop().callback(None)
                    self.place.pump()
                    stored = dict(self.place.stored()[before:])
                    self.assertEqual(transacted, ["changed"])
                    self.assertEqual(
                        Counter(stored.values()), Counter(["theirs", "twice", "mine", "twice"])
                    )
                    # The transaction was answered only when the append had been asked about.
                    if committed and key is None:
                        self.raised(appended, CommitUnknown)
                    else:
                        tokens = appended[0].tokens
                        self.assertEqual([stored[token] for token in tokens], ["mine", "twice"])
                    self.check_nothing_is_stuck()

    def test_does_not_take_it_for_an_append(self) -> None:
        # Of two equal facts one is there, and both answers are lost.
        self.store.stop = ["transact reserved", "append committed"]
        transacted, appended = self.place.transact(work("same")), self.place.append("same")
        rolled_back, committed = self.store.stopped
        committed.errback(LOST)
        rolled_back.errback(LOST)
        self.place.pump()
        self.raised(transacted, CommitUnknown)
        self.raised(appended, CommitUnknown)
        self.assertEqual([name for _, name in self.place.stored()], ["same"])
        self.check_nothing_is_stuck()

    def test_a_transaction_that_was_rolled_back_explains_no_fact(self) -> None:
        self.store.stop = ["transact reserved", "append committed"]
        transacted, appended = self.place.transact(work("same")), self.place.append("same")
        rolled_back, committed = self.store.stopped
        rolled_back.errback(AWAY)
        committed.errback(LOST)
        self.place.pump()
        self.raised(transacted, DatabaseAway)
        self.assertEqual(appended[0].tokens, [2])
        self.check_nothing_is_stuck()

    def test_facts_settled_meanwhile_are_no_trace_of_it(self) -> None:
        self.store.stop = ["transact reserved"]
        unknown = self.place.transact(work("a"))
        self.place.append("a")
        self.store.stopped.pop().errback(LOST)
        self.place.pump()
        self.assertEqual(unknown, ["changed"])
        self.assertEqual([name for _, name in self.place.stored()], ["a", "a"])
        self.check_nothing_is_stuck()

    def test_facts_settled_before_are_no_trace_of_it(self) -> None:
        # The first transaction holds the position; when it ends, the ledger forgets the append.
        self.store.stop = ["transact reserved", "transact committed", "open writer"]
        held = self.place.transact(work("held"))
        self.place.append("a")
        unknown = self.place.transact(work("a"))
        self.store.stopped[1].errback(LOST)
        self.store.stopped[0].errback(AWAY)
        self.store.stopped[2].callback(None)
        self.place.pump()
        self.raised(held, DatabaseAway)
        self.assertEqual(unknown, ["changed"])
        self.assertEqual([name for _, name in self.place.stored()], ["a", "a"])
        self.check_nothing_is_stuck()

    def test_raises_for_reserved_tokens_whose_commit_is_in_doubt(self) -> None:
        async def reserve() -> None:
            async with await self.writer.reserve(JOBS, 1) as reserved:
                await reserved.write([[Job("a")]])

        self.raised(
            self.lose(
                "write committed",
                lambda: self.place.outcome_of(Deferred.fromCoroutine(reserve())),
            ),
            CommitUnknown,
        )
        self.assertEqual(self.place.announcer.unknown_outcomes, [("jobs", (Job("a"),))])
        self.check_nothing_is_stuck()

    def test_raises_if_the_writer_is_stopped_meanwhile(self) -> None:
        self.store.stop = ["transact committed", "open writer"]
        outcome = self.place.transact(work("a"))
        self.store.stopped.pop().errback(LOST)
        self.assertEqual(outcome, [])
        self.place.start(self.writer.stop())
        self.raised(outcome, CommitUnknown)
        self.store.stopped.pop().callback(None)
        self.assertEqual(self.place.announcer.unknown_outcomes, [("jobs", (Job("a"),))])


class LosingTheLease(TransactCase):
    """While a transaction runs."""

    def lose_name(self) -> None:
        self.store.crash_session(JOBS, "master")

    def test_a_transaction_may_still_commit(self) -> None:
        self.store.stop = ["transact committed"]
        outcome = self.place.transact(work("a"))
        self.lose_name()
        self.place.pump()
        self.assertEqual(self.place.listener.tokens["jobs"], [1])  # found
        self.assertEqual(self.place.announcer.unknown_outcomes, [])
        self.store.stopped[0].callback(None)
        self.assertEqual(outcome, ["changed"])
        self.assertEqual(self.place.announcer.unknown_outcomes, [("jobs", (Job("a"),))])
        self.check_nothing_is_stuck()

    def test_a_transaction_that_is_fenced_fails(self) -> None:
        self.store.stop = ["transact"]
        outcome = self.place.transact(work("a"))
        self.lose_name()
        self.place.pump()
        self.store.stopped[0].callback(None)
        self.raised(outcome, WriterAway)
        self.assertEqual((self.store.table, self.place.stored()), ([], []))
        self.check_nothing_is_stuck()

    def test_refuses_transactions_without_a_lease(self) -> None:
        self.store.stop = ["open writer"]
        self.lose_name()
        self.raised(self.place.transact(work("a")), WriterAway)
        self.store.stopped[0].callback(None)

    def test_recovers_from_a_sequence_that_was_set_back(self) -> None:
        def both(txn: Transaction, outbox: Outbox) -> None:
            outbox.append(LOGS, [Line("x")])
            outbox.append(JOBS, [Job("x")])

        # Between the request and the sequence, where nothing else can be put in its way.
        ledger = self.writer.ledger("jobs")
        request = ledger.request

        def late() -> Request:
            ledger.request = request  # type: ignore[method-assign]
            made = request()
            self.place.start(self.writer.append(JOBS, [[]]))  # which leaves no trace
            self.place.start(self.writer.append(LOGS, [[Line("a")]]))
            self.store.set_sequence(JOBS, 0)
            return made

        ledger.request = late  # type: ignore[method-assign]
        outcome = self.place.transact(both, LOGS, JOBS)
        self.assertEqual(outcome, [None])
        self.assertEqual(
            self.place.announcer.unknown_outcomes, [("logs", (Line("x"),)), ("jobs", (Job("x"),))]
        )
        self.place.pump()
        self.assertEqual(self.place.stored(LOGS), [(1, "a"), (2, "x")])
        self.check_nothing_is_stuck()

    def test_reports_facts_of_a_reservation_as_in_doubt(self) -> None:
        async def reserve() -> None:
            async with await self.writer.reserve(JOBS, 1) as reserved:
                await reserved.write([[Job("a")]])
                self.lose_name()

        self.place.outcome_of(Deferred.fromCoroutine(reserve()))
        self.assertEqual(self.place.announcer.unknown_outcomes, [("jobs", (Job("a"),))])
        self.check_nothing_is_stuck()


class UnreliableStore(InterruptibleStore):
    """Takes its time, loses answers and sessions, as a random generator says."""

    random = Random(0)
    calm = True

    async def step(self, what: str) -> None:
        if self.calm:
            return
        dice = self.random.random()
        if dice < 0.4:
            await self._scheduler.sleep(self.random.random())
        dice = self.random.random()
        if what in ("append", "transact", "open writer", "observe", "page") and dice < 0.1:
            raise AWAY
        if what.endswith((" reserved", " committed")) and dice < 0.25:
            raise LOST
        if what in ("append reserved", "transact reserved") and dice < 0.35:
            raise AWAY
        if dice > 0.97:
            session: Any = self._of(JOBS).writer("master").session
            if session is not None:
                session.crash()


class TellingTheTruth(TestCase):
    """Whatever breaks, every caller gets the true outcome, and everything is announced."""

    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 2**32))
    def test_answers_truthfully_in_any_order_and_with_any_failure(self, seed: int) -> None:
        random = Random(seed)
        place = WriterSite(UnreliableStore)
        place.store.random, place.store.calm = random, False  # type: ignore[attr-defined]
        appended: list[tuple[list[str], list[Any]]] = []
        transacted: list[tuple[list[str], list[Any]]] = []
        for n in range(12):
            names = random.choices(["a", "b", f"only {n}"], k=random.randint(1, 2))
            if random.random() < 0.5:
                key = f"key {n}" if random.random() < 0.3 else None
                appended.append((names, place.append(*names, key=key)))
            else:
                transacted.append((names, place.transact(work(*names, change=str(n)))))
                transacted[-1][1].insert(0, str(n))
            place.clock.pump([0.1] * random.randint(0, 8))
        place.store.calm = True  # type: ignore[attr-defined]
        place.clock.pump([0.5] * 100)
        stored = dict(place.stored())
        certain: Counter[str] = Counter()
        possible: Counter[str] = Counter()
        for names, outcome in appended:
            (answer,) = outcome
            if not isinstance(answer, Exception):
                self.assertEqual([stored[token] for token in answer.tokens], names)
                certain.update(names)
            if not isinstance(answer, NOTHING_WRITTEN):
                possible.update(names)
        changed = Counter(place.store.table)
        for names, (change, answer) in transacted:
            if not isinstance(answer, Exception):
                self.assertEqual(answer, change)
                self.assertEqual(changed[change], 1)
            elif not isinstance(answer, CommitUnknown):
                self.assertIsInstance(answer, NOTHING_WRITTEN)
                self.assertEqual(changed[change], 0)
            self.assertLessEqual(changed[change], 1)
            certain.update(names * changed[change])
            possible.update(names * changed[change])
        found = Counter(stored.values())
        self.assertEqual(certain - found, Counter())
        self.assertEqual(found - possible, Counter())
        self.assertEqual(place.listener.tokens["jobs"], list(stored))
        ledger = place.writer.ledger("jobs")
        self.assertEqual((ledger.open_requests, ledger.outstanding), (0, 0))
        place.stop()
