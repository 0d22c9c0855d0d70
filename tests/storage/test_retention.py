"""Retention: marks, the two stores against each other, trimming during a read."""

from __future__ import annotations

from contextlib import closing
from random import Random
from typing import Any
from unittest import TestCase

import psycopg2
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from synrepl.core.tokens import Range, Token
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.position_marks import PositionMark, add_mark, aged_positions
from synrepl.storage.postgres.facts import FactTable
from synrepl.storage.store import AgedPositions, Draft, FactStore, Trimmed
from tests.storage.contract import EVERY
from tests.storage.postgres import PostgresCase
from tests.storage.samples import NOTES, note
from tests.storage.skipping_scheduler import SkippingScheduler


class PositionMarks(TestCase):
    """A few marks represent all times."""

    @given(
        st.lists(st.tuples(st.floats(0.01, 400), st.integers(0, 3)), max_size=120),
        st.sampled_from([0.0, 1.0, 600.0, 30_000.0]),
    )
    @settings(max_examples=60, deadline=None)
    def test_marks_show_the_age_of_positions(
        self, steps: list[tuple[float, int]], keep_s: float
    ) -> None:
        """The estimated age is never too low, and too high by at most the known error."""
        max_s = 30_000.0
        marks: list[PositionMark] = []
        now, position = 1_000_000.0, 0
        history: list[PositionMark] = []
        longest = 0.0
        for seconds, more in steps:
            seconds *= 10
            now, position, longest = now + seconds, position + more, max(longest, seconds)
            history.append(PositionMark(now, position))
            marks = add_mark(marks, now, position, keep_s, max_s)
            self.assertEqual(marks, sorted(marks))
            self.assertLessEqual(len(marks), 213)
            found = aged_positions(marks, now, position, keep_s, max_s)
            for token, age_s in ((found.past_keep, keep_s), (found.past_max, max_s)):
                self.assertLessEqual(token, at(history, now - age_s))
                coarse = max_s / 100 * 2 + longest
                self.assertGreaterEqual(token, at(history, now - age_s - coarse))

    def test_the_number_of_marks_is_bounded(self) -> None:
        for keep_s, at_most in ((0.0, 102), (600.0, 115), (7 * 86_400.0, 103)):
            marks: list[PositionMark] = []
            for minute in range(20_000):
                marks = add_mark(marks, minute * 60.0, minute + 1, keep_s, 7 * 86_400.0)
            self.assertLessEqual(len(marks), at_most)
            self.assertGreater(len(marks), 95)

    def test_an_idle_stream_needs_no_new_marks(self) -> None:
        marks = add_mark([], 5.0, 3, 10, 100)
        for now in range(6, 50):
            self.assertEqual(add_mark(marks, float(now), 3, 10, 100), [PositionMark(5.0, 3)])

    def test_tolerates_a_clock_that_goes_back(self) -> None:
        marks = [PositionMark(1000.0, 5)]
        self.assertEqual(add_mark(marks, 10.0, 9, 1, 100), marks)
        self.assertEqual(aged_positions(marks, 10.0, 9, 1, 100), AgedPositions(0, 0))


def at(history: list[PositionMark], when: float) -> Token:
    """The position of the stream at a time."""
    return max((mark.token for mark in history if mark.at <= when), default=0)


class MemoryAndPostgres(PostgresCase):
    """The in-memory store always trims exactly what the PostgreSQL store trims."""

    timeout = 120

    async def test_memory_and_postgres_trim_alike(self) -> None:
        memory, real = MemoryStore(SkippingScheduler()), self.process("real").store
        for seed in range(4):
            random = Random(seed)
            writers = [f"w{seed}.{n}" for n in range(3)]
            leases = [
                [await store.open_writer(name, [NOTES]) for name in writers]
                for store in (memory, real)
            ]
            names = [f"f{seed}.{n}" for n in range(3)]
            for _ in range(60):
                both = await self.step(random, (memory, real), leases, writers, names)
                first, second = both
                self.assertEqual(first, second, (seed, names))
            for lease in (*leases[0], *leases[1]):
                await lease.close()
            for name in names:
                for store in (memory, real):
                    await store.renew_lease(name, None, 0)

    async def step(
        self,
        random: Random,
        stores: tuple[FactStore, FactStore],
        leases: list[list[Any]],
        writers: list[str],
        names: list[str],
    ) -> list[Any]:
        """Apply one operation to both stores; return their results."""
        last = (await stores[0].observe([NOTES]))["notes"].last
        which, token = random.randrange(3), random.randint(max(0, last - 20), last)
        limit, other = random.randint(1, 8), random.randint(max(0, last - 20), last)
        rows = [[note("x")] * random.randint(0, 3) for _ in range(random.randint(1, 4))]
        writer = random.choice([*writers, ""])
        streams = random.choice([None, ["notes"], ["notes", "a"], ["a"]])
        what = random.choice(["append", "append", "record", "record", "lease", "acknowledge"] * 2
                             + ["trim"] * 5 + ["page"] * 3)  # fmt: skip
        answers = []
        for store, mine in zip(stores, leases, strict=True):
            answer: Any = None
            if what == "append":
                answer = await mine[which].append(NOTES, [Draft(rows)], 0)
            elif what == "record":
                await store.record_positions(NOTES, token, {})
            elif what == "lease":
                await store.renew_lease(names[which], streams, 0 if limit < 3 else 600)
            elif what == "acknowledge":
                await store.record_follower(names[which], {("notes", writer): token})
            elif what == "trim":
                answer = await store.trim(NOTES, token, other - 10, limit)
            else:
                try:
                    answer = await store.page(NOTES, Range(other, last), writer or None, 1000)
                except Trimmed as error:
                    answer = str(error)
            answers.append(answer)
        return answers


class TrimmingDuringReads(PostgresCase):
    """A page and a trim at the same time."""

    async def test_a_page_never_shows_a_trimmed_fact_as_none_at_all(self) -> None:
        """The trimmed position is read last; otherwise trimmed facts would look like no facts."""
        one, two = self.process("one"), self.process("two")
        await one.store.open_writer("w1", [NOTES])
        for writer, limit in ((None, 100), ("w1", 100), (None, 2), ("w1", 2)):
            with self.subTest(writer=writer, limit=limit):
                self.fill()
                table = Interrupted(self, limit)
                reading = Deferred.fromCoroutine(
                    two.database.run("page", table.of(Range(2, 10), writer))
                )
                await self.assertFailure(reading, Trimmed)

    def fill(self) -> None:
        """Append ten facts of four rows, without trimming."""
        self.sql(
            "INSERT INTO synrepl.notes (stream_id, row_no, writer, text)"
            " SELECT fact, row, 'w1', '' FROM generate_series(1, 10) AS fact, generate_series(0, 3) AS row"
        )
        self.sql("UPDATE synrepl._streams SET trimmed = 0")
        self.sql("UPDATE synrepl._writers SET trimmed = 0")


class Interrupted:
    """Reads a page, and trims the stream after its first statement."""

    def __init__(self, case: TrimmingDuringReads, limit: int) -> None:
        self._case = case
        self._limit = limit

    def of(self, span: Range, writer: str | None) -> Any:
        def work(txn: Any) -> Any:
            return FactTable(NOTES).page(_Trimming(txn, self._trim), span, writer, self._limit)

        return work

    def _trim(self) -> None:
        # Runs in the thread of the transaction.
        with closing(psycopg2.connect(self._case.dsn)) as one, one, one.cursor() as cursor:
            cursor.execute("UPDATE synrepl._streams SET trimmed = 10 WHERE stream = 'notes'")
            cursor.execute("DELETE FROM synrepl.notes")
            cursor.execute("UPDATE synrepl._writers SET trimmed = 10 WHERE stream = 'notes'")


class _Trimming:
    """A transaction with a trim before its second statement."""

    def __init__(self, txn: Any, trim: Any) -> None:
        self._txn = txn
        self._trim = trim
        self._statements = 0

    def execute(self, *args: Any) -> Any:
        self._statements += 1
        if self._statements == 2:
            self._trim()
        self._txn.execute(*args)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


class TrimmingInPostgres(PostgresCase):
    """Features that only Postgres has."""

    async def test_marks_and_leases_are_there_after_a_restart(self) -> None:
        store = self.process("one").store
        lease = await store.open_writer("w1", [NOTES])
        await lease.append(NOTES, [Draft([[note("a")]])], 0)
        await store.record_positions(NOTES, 1, {})
        await store.mark(NOTES, 10, 100)
        await store.renew_lease("f1", None, 60)
        self.sql("UPDATE synrepl._stream_marks SET at = at - interval '1 hour'")
        after = self.process("two").store
        self.assertEqual(await after.mark(NOTES, 10, 10_000), AgedPositions(1, 0))
        self.assertEqual((await after.trim(NOTES, EVERY, 0, 10)).held_by, "f1")
