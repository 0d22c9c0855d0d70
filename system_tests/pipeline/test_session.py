"""Sessions leave nothing behind, however they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from textwrap import dedent

from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.session.requirements import find_java
from synrepl.pipeline.session.settings import scratch_directory
from system_tests.pipeline.spark_fixture import PATIENCE_S, REPOSITORY, run_child

_IMPORTS = """
import json, logging, os, signal, sys
from pathlib import Path
from pyspark import SparkContext
from synrepl.core.errors import SynreplError
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

scratch = Path(sys.argv[1])
HUSH = {"spark.hadoop.fs.s3a.secret.key": "hush-hush", "spark.x.dsn": "dbname=x password=hush-hush"}
options = SessionOptions("local[1]", driver_memory="512m", local_dir=scratch, conf=HUSH)

def jvm():
    return SparkContext._gateway.proc.pid

def alive(pid):
    return Path(f"/proc/{pid}").exists()
"""

_LIVES = """
interrupted = lambda *_: None
signal.signal(signal.SIGINT, interrupted)
def environment():
    # Without two that PySpark leaves, which only its own workers read.
    pysparks = "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"
    return {name: value for name, value in os.environ.items() if name not in pysparks}

environ = environment()
report = {}

with open_session(options):
    killed = jvm()
    os.kill(killed, signal.SIGKILL)
    SparkContext._gateway.proc.wait()
report["killed"] = alive(killed), list(scratch.iterdir())

with open_session(options) as spark:
    pid = jvm()
    report["count"] = spark.range(7).count()
    report["conf"] = spark.conf.get("spark.hadoop.fs.s3a.secret.key")
    context = spark.sparkContext
    report["secret"] = context.getConf().get("spark.authenticate.secret")
    report["authenticates"] = context.getConf().get("spark.authenticate") == "true"
    report["command"] = Path(f"/proc/{pid}/cmdline").read_text()
    report["settings"] = [str(file) for file in scratch.rglob("*.properties") if "hush" in file.read_text()]
    report["modes"] = [oct(each.stat().st_mode & 0o777) for each in scratch.iterdir()]
    report["during"] = alive(pid), environment() == environ
    try:
        with open_session(options):
            pass
    except SynreplError as error:
        report["open"] = type(error).__name__
report["after"] = alive(pid), list(scratch.iterdir()), environment() == environ
report["handler"] = signal.getsignal(signal.SIGINT) is interrupted
print(json.dumps(report))
"""

_REFUSED = """
import dataclasses
from tempfile import TemporaryDirectory

for changes in json.loads(sys.argv[2]):
    if where := changes.pop("local_dir", None):
        changes["local_dir"] = Path(where)
    try:
        with open_session(dataclasses.replace(options, conf={}, **changes)):
            pass
    except SynreplError as error:
        print(json.dumps([type(error).__name__, str(error), list(map(str, scratch.iterdir()))]))
"""

_WORKING = """
import socket
port = int(sys.argv[2])

def wait(batches):
    with socket.create_connection(("127.0.0.1", port)) as held:
        held.sendall(b"working")
        held.recv(1)  # until the test closes it
    yield from batches

with open_session(options) as spark:
    print(jvm(), flush=True)
    spark.range(3).mapInArrow(wait, "id bigint").count()
"""

_KILLED = """
from synrepl.pipeline.session.settings import scratch_directory

with scratch_directory(scratch) as mine:
    (mine / "local").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""

_STARTING = """
try:
    with open_session(options):
        print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", list(scratch.iterdir()))
"""

_BROKEN = """
from synrepl.pipeline.session import session

for home, patience_s in json.loads(sys.argv[2]):
    os.environ["JAVA_HOME"], session.START_PATIENCE_S = home, patience_s
    try:
        with open_session(options):
            pass
    except SynreplError as error:
        print(json.dumps([type(error).__name__, str(error), list(map(str, scratch.iterdir()))]))
"""

#: A fake Java that reports its version, and starts Spark as the test defines.
_JAVA = """\
#!/bin/sh
case "$*" in
*--list-modules) echo '    java.home = {home}' >&2
    echo '    java.specification.version = {version}' >&2
    echo jdk.incubator.vector; exit;;
*launcher.Main*) exec '{real}' "$@";;
esac
{start}
"""

#: A start that interrupts the process that starts it, as Ctrl-C does.
_INTERRUPTING = """\
echo $$ > '{home}/pid'; kill -INT "$TO_INTERRUPT"
exec '{real}' "$@"
"""


class SessionLifecycle(SynchronousTestCase):
    """Sessions in child processes, because a process can have only one."""

    def setUp(self) -> None:
        self.scratch = Path(self.mktemp()).resolve()
        self.scratch.mkdir()

    def java(self, name: str, start: str) -> Path:
        """Create a fake Java that runs the shell script ``start`` for Spark; its home."""
        found, home = find_java(), self.scratch.parent / name
        names = {"home": home, "version": found.version, "real": found.home / "bin" / "java"}
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(_JAVA.format(start=start.format(**names), **names))
        program.chmod(0o700)
        return home

    def test_names_a_java_that_does_not_start(self) -> None:
        patience_s = 120.0
        homes = [
            (str(self.java("failing", "echo no room >&2; exit 3")), patience_s),
            (str(self.java("hanging", "echo well; exec cat")), 2.0),  # until the end of its input
        ]
        ended = run_child(_IMPORTS + _BROKEN, str(self.scratch), json.dumps(homes))
        self.assertEqual((ended.status, ended.errors), (0, ""))
        failing, hanging = map(json.loads, ended.output.splitlines())
        self.assertEqual(failing[0], "SparkNotStarted")
        self.assertIn("process exited before", failing[1])
        self.assertIn("the last it said: no room", failing[1])
        self.assertEqual(hanging[0], "SparkNotStarted")
        self.assertIn("its JVM did not answer within 2 s", hanging[1])
        self.assertEqual([failing[2], hanging[2]], [[], []], "left in the scratch directory")

    def test_ended_sessions_leave_nothing_behind(self) -> None:
        ended = run_child(_IMPORTS + _LIVES, str(self.scratch))
        # Spark prints nothing on a terminal either.
        self.assertEqual((ended.status, ended.errors), (0, ""))
        report = json.loads(ended.output)
        self.assertEqual(report["killed"], [False, []])
        self.assertEqual(report["count"], 7)
        self.assertEqual(report["conf"], "hush-hush")
        self.assertIn("SparkSubmit", report["command"])
        self.assertNotIn("hush", report["command"])
        self.assertTrue(report["authenticates"])
        self.assertEqual(len(report["secret"]), 64)
        self.assertNotIn(report["secret"], report["command"])
        self.assertEqual(report["settings"], [], "on disk, when the JVM has read them")
        self.assertEqual(report["modes"], ["0o700"])
        self.assertEqual(report["during"], [True, True])
        self.assertEqual(report["open"], "SessionOpen")
        self.assertEqual(report["after"], [False, [], True])
        self.assertTrue(report["handler"], "of the interrupt key")

    def test_sessions_that_cannot_start_are_refused_by_name(self) -> None:
        # The port is bound, so that no other process gets it, but nothing listens.
        bound = socket.socket()
        self.addCleanup(bound.close)
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        file = self.scratch.parent / "file"
        file.touch()
        changes = [
            {"master": f"spark://127.0.0.1:{port}"},
            {"local_dir": str(file)},
            # Less memory than Spark needs to start.
            {"driver_memory": "64m"},
        ]
        ended = run_child(_IMPORTS + _REFUSED, str(self.scratch), json.dumps(changes))
        self.assertEqual((ended.status, ended.errors), (0, ""))
        unreachable, no_scratch, not_started = map(json.loads, ended.output.splitlines())
        self.assertEqual(unreachable[0], "MasterUnreachable")
        self.assertEqual(no_scratch[0], "NoScratch")
        self.assertIn(f"{file}: Not a directory", no_scratch[1])
        self.assertEqual(not_started[0], "SparkNotStarted")
        self.assertIn("System memory", not_started[1].partition("; the last it said")[0])
        self.assertEqual(not_started[2], [], "nothing is left of a start that failed")

    def test_scratch_of_killed_processes_is_removed(self) -> None:
        ended = run_child(_IMPORTS + _KILLED, str(self.scratch))
        self.assertEqual(ended.status, -signal.SIGKILL, ended.errors)
        (dead,) = self.scratch.iterdir()
        none_of_ours = self.scratch / "synrepl-spark-notes"
        none_of_ours.mkdir()
        with scratch_directory(self.scratch) as living:
            self.assertEqual(set(self.scratch.iterdir()), {living, none_of_ours})
            with scratch_directory(self.scratch) as another:
                self.assertEqual(set(self.scratch.iterdir()), {living, another, none_of_ours})
        self.assertFalse(dead.exists())
        self.assertEqual(list(self.scratch.iterdir()), [none_of_ours])

    def test_an_interrupt_during_work_ends_the_session(self) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            listening.settimeout(PATIENCE_S)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _IMPORTS + dedent(_WORKING)),
                    *(str(self.scratch), str(listening.getsockname()[1])),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                start_new_session=True,
            )
            try:
                with closing(listening.accept()[0]) as task:
                    task.settimeout(PATIENCE_S)
                    self.assertEqual(task.recv(7), b"working")
                    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                    output, errors = process.communicate(timeout=PATIENCE_S)
                    with contextlib.suppress(ConnectionResetError):
                        self.assertEqual(task.recv(1), b"", "the task lives on")
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
        self.assertEqual(process.returncode, -signal.SIGINT, errors)
        self.assertFalse(Path("/proc", output.strip()).exists(), "the JVM lives on")
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_an_interrupt_during_the_start_ends_the_jvm(self) -> None:
        home = self.java("home", _INTERRUPTING)
        ended = run_child(
            "import os\nos.environ['TO_INTERRUPT'] = str(os.getpid())\n" + _IMPORTS + _STARTING,
            str(self.scratch),
            JAVA_HOME=str(home),
        )
        self.assertEqual(ended, (0, "interrupted []\n", ""))
        pid = (home / "pid").read_text().strip()
        self.assertFalse(Path("/proc", pid).exists(), "the JVM lives on")
