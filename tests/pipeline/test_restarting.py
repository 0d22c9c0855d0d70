"""A session that is opened again after Spark has died; Spark itself is not needed to lose it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.accumulators import AccumulatorTCPServer
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.on_demand import ROWS_HERE, SessionOnDemand
from synrepl.pipeline.lake.spark_tasks import TaskFailed
from synrepl.pipeline.session import session
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.restarting import MAX_LOSSES, RestartingSession, SparkLost
from synrepl.pipeline.source.errors import EndNotSettled


def interrupted(session: object) -> None:
    """An interrupted query, with the call to the JVM that PySpark makes at the end of each."""
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise Py4JError("Answer from Java side is empty")
    except Py4JError as error:
        raise TaskFailed(reason=str(error)) from error


class Restarting(SynchronousTestCase):
    """Errors that mean the end of Spark, and others."""

    def setUp(self) -> None:
        self.opened = 0

        def open_session(options: SessionOptions) -> Any:
            self.opened += 1
            return nullcontext(f"session {self.opened}")

        self.patch(session, "open_session", open_session)
        self.restarting = RestartingSession(SessionOptions(), lambda session: session)

    def call(self, error: Exception | None = None) -> str:
        def work(session: SessionOnDemand) -> str:
            opened = session()
            if error is not None:
                raise error
            return str(opened)

        return self.restarting.call(work)

    def test_a_lost_session_is_replaced_with_the_next_call(self) -> None:
        with self.restarting:
            self.assertEqual(self.call(), "session 1")
            for error in TaskFailed(reason="a worker died"), Py4JError("no answer"):
                lost = self.assertRaises(SparkLost, self.call, error)
                self.assertIn(str(error.facts["reason"]) if isinstance(error, TaskFailed) else "no answer", str(lost))  # fmt: skip
            self.assertEqual(self.call(), "session 3")

    def test_no_session_is_opened_for_what_needs_none(self) -> None:
        with self.restarting:
            self.assertEqual(self.restarting.call(lambda session: session.rows_here), ROWS_HERE)
        self.assertEqual(self.opened, 0)

    def test_an_error_of_ours_ends_no_session(self) -> None:
        with self.restarting:
            error = EndNotSettled(wait_s="1", what="x")
            self.assertRaises(EndNotSettled, self.call, error)
            self.assertEqual((self.call(), self.opened), ("session 1", 1))

    def test_what_fails_each_time_is_raised(self) -> None:
        error = TaskFailed(reason="out of memory")
        with self.restarting:
            for _ in range(2):  # a success in between starts the count again
                for _ in range(MAX_LOSSES - 1):
                    self.assertRaises(SparkLost, self.call, error)
                self.call()
            for _ in range(MAX_LOSSES - 1):
                self.assertRaises(SparkLost, self.call, error)
            self.assertIs(self.assertRaises(TaskFailed, self.call, error), error)

    def test_an_interrupt_is_no_loss_although_the_last_call_fails(self) -> None:
        with self.restarting:
            self.assertRaises(KeyboardInterrupt, self.restarting.call, interrupted)
        self.assertRaises(KeyboardInterrupt, self.in_named_session)

    def in_named_session(self) -> None:
        with session.named_session(SessionOptions()):
            interrupted(None)

    def test_threads_of_pyspark_print_as_before_afterwards(self) -> None:
        before = AccumulatorTCPServer.handle_error
        with self.restarting:
            self.call()
            self.assertIsNot(AccumulatorTCPServer.handle_error, before)
        self.assertIs(AccumulatorTCPServer.handle_error, before)
