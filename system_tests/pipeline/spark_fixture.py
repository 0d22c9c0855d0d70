"""Real Spark for tests: one session per process, started on first use and ended with the process.

    class Landing(TestCase):
        def test_counts(self):
            self.assertEqual(shared_session().range(3).count(), 3)

A process has one session. A test that needs another one, or ends one, runs in a child process: see
:func:`run_child`.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from pyspark.sql import SparkSession

from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

REPOSITORY = Path(__file__).resolve().parent.parent.parent

#: Options for two cores and little memory; workers can import the tests.
LOCAL = SessionOptions(
    master="local[2]", app_name="tests", driver_memory="512m", python_path=(REPOSITORY,)
)
#: Options for separate executor processes, which do not inherit the driver's options.
EXECUTORS = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
CLUSTER = SessionOptions(
    master="local-cluster[2,1,1024]",
    app_name="tests",
    driver_memory="512m",
    python_path=(REPOSITORY,),
    conf=EXECUTORS,
)

#: Time limit of a child process, in seconds.
PATIENCE_S = 300

_kept = ExitStack()
_shared: list[SparkSession] = []


def shared_session() -> SparkSession:
    """The session of this process; a test has to undo what it registers in it."""
    if not _shared:
        # Ended by atexit, because a test runner has no hook after all tests.
        _shared.append(_kept.enter_context(open_session(LOCAL)))
        atexit.register(_kept.close)
    return _shared[0]


class ChildResult(NamedTuple):
    """Exit status and output of a child process."""

    status: int
    output: str
    errors: str


def run_child(script: str, *arguments: str, **environ: str) -> ChildResult:
    """Run a script in a new Python process; it and its children have ended when this returns."""
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(script), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environ},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return ChildResult(process.returncode, output, errors)
