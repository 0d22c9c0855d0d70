"""Sessions whose executors are other processes: a local cluster, and a Spark Connect server."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pyspark
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.session.java import find_java
from tests.pipeline.spark import PATIENCE_S, REPOSITORY, play

_TASK = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])  # the checkout, which nobody else is told of
import synrepl
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

def where(batches):
    import pyarrow
    for batch in batches:
        upto = Range(0, batch.num_rows).upto  # by its name: a worker has to import it
        names = [[os.getppid()], [upto], [synrepl.__file__]]
        yield pyarrow.RecordBatch.from_arrays(list(map(pyarrow.array, names)), ["pid", "rows", "file"])
"""

_CLUSTER = """
options = SessionOptions("local-cluster[2,1,1024]", driver_memory="512m", local_dir=Path(sys.argv[2]))
with open_session(options) as spark:
    rows = spark.range(0, 8, 1, 4).mapInArrow(where, "pid long, rows long, file string").collect()
    print(json.dumps([sum(row.rows for row in rows), sorted({row.file for row in rows})]))
"""

_CONNECT = """
environ = dict(os.environ)
told = {}

def refused(**changes):
    try:
        with open_session(SessionOptions(sys.argv[2], **changes)):
            pass
    except SynreplError as error:
        return type(error).__name__, str(error)

for _ in range(2):  # one after the other
    with open_session(SessionOptions(sys.argv[2], conf={"spark.sql.shuffle.partitions": "3"})) as spark:
        rows = spark.range(8).mapInArrow(where, "pid long, rows long, file string").collect()
        told["rows"] = sum(row.rows for row in rows)
        told["conf"] = [
            spark.conf.get(key) for key in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
        ]
        told["second"] = refused()
told["static"] = refused(conf={"spark.executor.memory": "1g"})
told["environ"] = dict(os.environ) == environ
sys.modules["grpc"] = None
told["missing"] = refused()
print(json.dumps(told))
"""


class Elsewhere(SynchronousTestCase):
    """What runs in other processes finds this package, and is gone at the end."""

    def test_local_cluster(self) -> None:
        scratch = Path(self.mktemp()).resolve()
        scratch.mkdir()
        played = play(_TASK + _CLUSTER, str(REPOSITORY), str(scratch), PYTHONPATH="")
        self.assertEqual((played.status, played.errors), (0, ""))
        self.assertEqual(
            json.loads(played.output), [8, [str(REPOSITORY / "synrepl" / "__init__.py")]]
        )
        self.assertEqual(list(scratch.iterdir()), [])
        # They are told to go, and may take longer than the driver's process, which has gone.
        give_up = time.monotonic() + PATIENCE_S
        while (left := _mentioning(scratch)) and time.monotonic() < give_up:
            time.sleep(0.05)
        self.assertEqual(left, [], "executors live on")

    def test_connect(self) -> None:
        with _server(Path(self.mktemp()).absolute()) as address:
            played = play(_TASK + _CONNECT, str(REPOSITORY), f"sc://{address}/;user_id=us")
        self.assertEqual((played.status, played.errors), (0, ""))
        told = json.loads(played.output)
        self.assertEqual(told["rows"], 8)
        self.assertEqual(told["conf"], ["UTC", "3"])
        self.assertEqual(told["second"][0], "SessionOpen")
        self.assertEqual(told["static"][0], "SettingRefused")
        self.assertIn("spark.executor.memory", told["static"][1])
        self.assertTrue(told["environ"], "the environment is as it was")
        self.assertEqual(told["missing"][0], "ConnectMissing")
        self.assertIn("(grpc cannot be found)", told["missing"][1])


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A Spark Connect server on loopback; gives its address."""
    folder.mkdir(parents=True)
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.master": "local[1]",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData",
    }
    process = subprocess.Popen(
        [
            *(home / "bin" / "spark-submit", "--class"),
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
            "spark-internal",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home_for_spark(folder)),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
        },
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = Thread(target=_read, args=(process, lines))
    reader.start()
    try:
        yield _address(lines)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            reader.join()


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line)
    lines.put("")


def _address(lines: queue.SimpleQueue[str]) -> str:
    said = []
    while line := lines.get(timeout=PATIENCE_S):
        said.append(line)
        if found := re.search(r"Connect server started at:? .*?(127\.0\.0\.1):(\d+)", line):
            return f"{found[1]}:{found[2]}"
    raise AssertionError("the server ended: " + "".join(said))


def _mentioning(path: Path) -> list[str]:
    """The command lines of processes that have to do with a directory."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(path) in (command := file.read_text(errors="replace")):
                found.append(command)
    return found
