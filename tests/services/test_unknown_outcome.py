"""Appends whose COMMIT was not answered: nothing is doubled or lost, and callers get the true outcome."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import CommitUnknown
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import AppendResult
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Fact

JOBS = declare("jobs", {"name": "text"})
Job = JOBS.kinds[UNTAGGED]


class UnansweredStore(MemoryStore):
    """Loses the answer to the next append, at a chosen step."""

    at: str | None = None
    hang: str | None = None

    async def step(self, what: str) -> None:
        if what == self.hang:
            self.hung: Deferred[None] = Deferred()
            await self.hung
        if what == self.at:
            self.at = None
            raise CommitUnknown(where="memory", name="append", xid="7", reason="cut")


class RecordingListener:
    """Keeps what is announced."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def writer_advanced(
        self, stream: object, writer: str, prev: int, new: int, facts: Sequence[Fact]
    ) -> None:
        self.tokens += [fact.token for fact in facts]

    def linear_advanced(
        self, stream: object, prev: int, new: int, facts: Sequence[Fact] | None
    ) -> None:
        """Not looked at."""


class LosingTheAnswerToAnAppend(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        scheduler = TwistedScheduler(self.clock)
        self.store = UnansweredStore(scheduler)
        self.listener = RecordingListener()
        announcer = Announcer(scheduler, self.store, [JOBS], self.listener, Logger())
        self.writer = StreamWriter(scheduler, self.store, "master", [JOBS], announcer, Logger())
        self.wait(self.writer.start())
        self.wait(announcer.start())
        self.addCleanup(scheduler.stop)

    def wait(self, coroutine: object) -> object:
        deferred = Deferred.fromCoroutine(coroutine)  # type: ignore[arg-type]
        self.clock.pump([0.1] * 20)
        return self.successResultOf(deferred)

    def append(self, *names: str, key: str | None = None) -> object:
        return self.wait(self.writer.append(JOBS, [[Job(name)] for name in names], key))

    def stored(self) -> list[tuple[int, str]]:
        page = self.wait(self.store.page(JOBS, Range(0, 100), None, 100))
        return [(fact.token, fact.rows[0].name) for fact in page.facts]  # type: ignore[attr-defined]

    def test_returns_the_tokens_if_it_was_committed(self) -> None:
        self.append("a")
        self.store.at = "append committed"
        self.assertEqual(self.append("b", "c"), AppendResult([2, 3], "master"))
        self.assertEqual(self.stored(), [(1, "a"), (2, "b"), (3, "c")])
        self.assertEqual(self.listener.tokens, [1, 2, 3])

    def test_appends_again_if_it_was_not_committed(self) -> None:
        self.append("a")
        self.store.at = "append reserved"
        written = self.append("b")
        self.assertEqual([name for _, name in self.stored()], ["a", "b"])
        self.assertEqual(self.stored()[-1], (written.tokens[0], "b"))  # type: ignore[attr-defined]
        self.assertEqual(self.listener.tokens, [token for token, _ in self.stored()])

    def test_answers_all_callers_of_a_shared_transaction(self) -> None:
        for lost_at in ("append reserved", "append committed"):
            with self.subTest(lost_at):
                before = len(self.stored())
                blocked = Deferred.fromCoroutine(self.writer.append(JOBS, [[Job("first")]]))
                self.store.at = lost_at
                calls = [
                    Deferred.fromCoroutine(self.writer.append(JOBS, [[Job(name)]], key))
                    for name, key in (("x", None), ("y", f"key {lost_at}"), ("z", None))
                ]
                self.clock.pump([0.1] * 20)
                self.successResultOf(blocked)
                answers = [self.successResultOf(call).tokens for call in calls]
                stored = dict(self.stored()[before:])
                self.assertEqual([stored[tokens[0]] for tokens in answers], ["x", "y", "z"])
                self.assertEqual(sorted(stored.values()), ["first", "x", "y", "z"])
                self.assertEqual(self.listener.tokens, [token for token, _ in self.stored()])

    def test_a_key_that_was_used_before_is_replayed(self) -> None:
        self.append("a", key="k")
        self.store.at = "append committed"
        written = self.append("a", key="k")
        self.assertEqual((written.tokens, written.replayed), ([1], True))  # type: ignore[attr-defined]
        self.assertEqual(self.stored(), [(1, "a")])

    def test_raises_if_the_writer_is_stopped_meanwhile(self) -> None:
        self.store.at, self.store.hang = "append committed", "open writer"
        self.failureResultOf(self.cut_and_stopped(), CommitUnknown)

    def test_releases_a_lease_that_is_acquired_again_after_the_stop(self) -> None:
        self.store.at, self.store.hang = "append committed", "open writer"
        self.failureResultOf(self.cut_and_stopped(), CommitUnknown)
        self.store.hang = None
        self.store.hung.callback(None)
        self.clock.pump([0.1] * 20)
        seen = self.wait(self.store.observe([JOBS]))
        self.assertFalse(seen["jobs"].writers["master"].is_held)  # type: ignore[index]
        self.assertFalse(self.writer.is_open)

    def cut_and_stopped(self) -> Deferred[AppendResult]:
        """An append whose answer is lost, at a writer that is stopped before it has its name back."""
        deferred = Deferred.fromCoroutine(self.writer.append(JOBS, [[Job("a")]]))
        self.assertNoResult(deferred)
        Deferred.fromCoroutine(self.writer.stop())
        self.clock.pump([0.1] * 20)
        return deferred
