"""Commands that run Spark, ended by a signal while a job runs."""

from __future__ import annotations

import signal
from unittest import TestCase

from system_tests.pipeline.spark_fixture import run_child

#: Waits for a job that takes hours; a signal comes once it runs.
SCRIPT = """
    import os, sys, threading
    from synrepl.cli.terminal import graceful_exit
    from synrepl.pipeline.session.options import SessionOptions
    from synrepl.pipeline.session.session import named_session

    def interrupt(tracker):
        while not tracker.getActiveStageIds():
            pass
        os.kill(os.getpid(), int(sys.argv[1]))

    options = SessionOptions(master="local[1]", driver_memory="512m")
    with graceful_exit(), named_session(options) as spark:
        tracker = spark.sparkContext.statusTracker()
        threading.Thread(target=interrupt, args=(tracker,), daemon=True).start()
        spark.range(10**15).selectExpr("sum(hash(id))").collect()
"""


class DuringAJob(TestCase):
    def test_sigterm_ends_the_command_silently(self) -> None:
        done = run_child(SCRIPT, str(int(signal.SIGTERM)))
        self.assertEqual(done, (-signal.SIGTERM, "", ""))

    def test_the_interrupt_key_ends_the_command_silently(self) -> None:
        done = run_child(SCRIPT, str(int(signal.SIGINT)))
        self.assertEqual(done, (130, "", ""))
