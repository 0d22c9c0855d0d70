"""The simulated database understands operators as the real one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import TestCase

from simulator.membership_database import MembershipDatabase, UnknownStatement
from simulator.position_checker import CommitChecker
from simulator.transcript import Transcript
from simulator.truth import Truth, Violations
from simulator.watched_stream import WatchedStream
from simulator.workload import JOBS
from synrepl.storage import membership, writers
from synrepl.storage.database import SerializationFailure, Transaction
from synrepl.storage.membership import (
    BroughtBack,
    NoSuchWriter,
    NotDrained,
    WriterBusy,
    WriterLives,
)
from synrepl.storage.store import Drained, Fenced


async def at_once() -> None:
    """A way that takes no time."""


class MembershipDatabaseTests(TestCase):
    """At the stream ``jobs``."""

    def setUp(self) -> None:
        checker = CommitChecker(Violations(Transcript(lambda: 0.0)), Truth())
        self.jobs = WatchedStream(JOBS, checker, lambda *_: None, lambda *_: None)
        self.notified: list[str] = []
        streams = {JOBS.name: self.jobs}
        self.database = MembershipDatabase(streams, self.notified.append, at_once)

    def run_work(self, work: Callable[[Transaction], Any]) -> Any:
        running = self.database.run("test", work)
        with self.assertRaises(StopIteration) as done:
            running.send(None)
        return done.exception.value

    def change(self, what: Callable[..., Any], writer: str = "w") -> Any:
        return self.run_work(lambda txn: what(txn, JOBS.name, writer))

    def live(self) -> None:
        """A process becomes ``w``."""
        writer = self.jobs.writer("w")
        writer.epoch, writer.held, writer.session = 1, True, self

    def take(self) -> None:
        """It takes a token, in a transaction."""
        self.jobs.enter("w", 1)
        self.jobs.hold("w", "an append")
        self.jobs.take(1, 0)

    def test_a_writer_is_added_once(self) -> None:
        self.assertTrue(self.change(membership.add))
        self.assertFalse(self.change(membership.add))
        self.assertEqual(self.notified, ["jobs"])
        self.assertIn("w", self.jobs.writers)

    def test_a_drained_writer_takes_no_token_until_it_is_brought_back(self) -> None:
        self.live()
        self.change(membership.drain)
        with self.assertRaises(Drained):
            self.take()
        self.assertEqual(self.jobs.writers["w"].holders, {})
        self.assertTrue(self.change(membership.add))
        self.jobs.leave("w")
        self.take()

    def test_a_drain_waits_for_an_old_snapshot_with_a_token_and_refuses_the_next(self) -> None:
        self.change(membership.add)
        old, older = self.jobs.snapshot("w"), self.jobs.snapshot("w")
        self.change(membership.drain)
        self.jobs.hold("w", "plain SQL")
        self.jobs.take_by_snapshot(old)
        self.assertFalse(self.change(membership.conclude_drain))
        self.jobs.leave_snapshot("w")
        self.assertTrue(self.change(membership.conclude_drain))
        with self.assertRaises(SerializationFailure):
            self.jobs.take_by_snapshot(older)
        with self.assertRaises(Drained):
            self.jobs.take_by_snapshot(self.jobs.snapshot("w"))
        self.change(membership.add)
        with self.assertRaises(BroughtBack):
            self.change(membership.conclude_drain)

    def test_refuses_to_drain_an_unknown_writer(self) -> None:
        with self.assertRaises(NoSuchWriter):
            self.change(membership.drain)

    def test_refuses_to_remove_a_live_or_busy_writer(self) -> None:
        self.live()
        with self.assertRaises(WriterLives):
            self.change(membership.remove)
        self.take()
        self.jobs.writers["w"].session = None
        with self.assertRaises(WriterBusy):
            self.change(membership.remove)

    def test_refuses_to_remove_a_writer_that_is_not_drained(self) -> None:
        self.change(membership.add)
        with self.assertRaises(NotDrained):
            self.change(membership.remove)

    def test_a_removed_writer_is_refused(self) -> None:
        self.live()
        self.jobs.writers["w"].session = None
        self.change(membership.remove)
        with self.assertRaises(Fenced):
            self.take()
        seen = self.jobs.observation().writers["w"]
        self.assertEqual((seen.is_removed, seen.is_held), (True, False))
        self.assertTrue(self.change(membership.add))
        self.assertFalse(self.jobs.observation().writers["w"].is_removed)

    def test_a_dead_writer_is_fenced_and_may_be_removed(self) -> None:
        self.live()
        self.assertFalse(self.change(writers.fence))
        self.jobs.writers["w"].session = None
        self.assertTrue(self.change(writers.fence))
        self.change(membership.remove)

    def test_observes_like_the_stream(self) -> None:
        self.live()
        self.take()
        seen = self.run_work(lambda txn: writers.observe(txn, [JOBS]))["jobs"]
        real = self.jobs.observation()
        self.assertEqual((seen.last, seen.recorded, seen.trimmed), (1, 0, 0))
        for name, writer in real.writers.items():
            writer = seen.writers[name]
            self.assertEqual(
                (writer.epoch, writer.is_held, writer.is_alive),
                (writer.epoch, writer.is_held, writer.is_alive),
            )
            self.assertEqual(
                [holder.description for holder in writer.holders],
                [holder.description for holder in writer.holders],
            )

    def test_refuses_an_unknown_statement(self) -> None:
        with self.assertRaises(UnknownStatement):
            self.run_work(lambda txn: txn.execute("DELETE FROM synrepl._writers"))
