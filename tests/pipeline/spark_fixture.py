"""Real Spark for tests: one session a process, begun when first asked for and ended with it.

    class Landing(TestCase):
        def test_counts(self):
            self.assertEqual(shared_session().range(3).count(), 3)

A process has one session. A test that wants another one, or ends one, plays in a child: see
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

#: Two cores, little memory, and workers can import tests.
LOCAL = SessionOptions(
    master="local[2]", app_name="tests", driver_memory="512m", python_path=(REPOSITORY,)
)
#: Executors that are processes of their own take none of a driver's options.
EXECUTORS = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
CLUSTER = SessionOptions(
    master="local-cluster[2,1,1024]",
    app_name="tests",
    driver_memory="512m",
    python_path=(REPOSITORY,),
    conf=EXECUTORS,
)

#: Seconds a child may take, when nothing is wrong by far the most.
PATIENCE_S = 300

_kept = ExitStack()
_shared: list[SparkSession] = []


def shared_session() -> SparkSession:
    """The session of this process; what a test registers in it, it takes back."""
    if not _shared:
        # Ended by the interpreter's end: a test runner has no place for what outlives all tests.
        _shared.append(_kept.enter_context(open_session(LOCAL)))
        atexit.register(_kept.close)
    return _shared[0]


class ChildResult(NamedTuple):
    """How a child ended."""

    status: int
    output: str
    errors: str


def run_child(script: str, *arguments: str, **environ: str) -> ChildResult:
    """Run a script in a Python of its own; it is gone, and its children are, when this returns."""
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
