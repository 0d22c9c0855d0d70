"""Sessions with executors in other processes: a local cluster, and a Spark Connect server."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from system_tests.pipeline.spark_fixture import PATIENCE_S, REPOSITORY, run_child
from system_tests.pipeline.spark_servers import connect_server

_TASK = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])  # the checkout, which only this process imports from
import synrepl
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session

def where(batches):
    import pyarrow
    for batch in batches:
        upto = Range(0, batch.num_rows).upto  # pickled by name, so a worker has to import it
        names = [[os.getppid()], [upto], [synrepl.__file__]]
        yield pyarrow.RecordBatch.from_arrays(list(map(pyarrow.array, names)), ["pid", "rows", "file"])
"""

_CLUSTER = """
options = SessionOptions("local-cluster[1,2,1024]", driver_memory="512m", local_dir=Path(sys.argv[2]))
with open_session(options) as spark:
    rows = spark.range(0, 8, 1, 4).mapInArrow(where, "pid long, rows long, file string").collect()
    print(json.dumps([sum(row.rows for row in rows), sorted({row.file for row in rows})]))
"""

_CONNECT = """
environ = dict(os.environ)
report = {}

def refused(**changes):
    try:
        with open_session(SessionOptions(sys.argv[2], **changes)):
            pass
    except SynreplError as error:
        return type(error).__name__, str(error)

for _ in range(2):  # one after the other
    with open_session(SessionOptions(sys.argv[2], conf={"spark.sql.shuffle.partitions": "3"})) as spark:
        rows = spark.range(8).mapInArrow(where, "pid long, rows long, file string").collect()
        report["rows"] = sum(row.rows for row in rows)
        report["conf"] = [
            spark.conf.get(key) for key in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
        ]
        report["second"] = refused()
report["static"] = refused(conf={"spark.executor.memory": "1g"})
report["environ"] = dict(os.environ) == environ
sys.modules["grpc"] = None
report["missing"] = refused()
print(json.dumps(report))
"""


class SessionsWithRemoteExecutors(SynchronousTestCase):
    """Executors in other processes can import this package, and end with the session."""

    def test_executors_of_a_local_cluster_find_the_package(self) -> None:
        scratch = Path(self.mktemp()).resolve()
        scratch.mkdir()
        ended = run_child(_TASK + _CLUSTER, str(REPOSITORY), str(scratch), PYTHONPATH="")
        self.assertEqual((ended.status, ended.errors), (0, ""))
        self.assertEqual(
            json.loads(ended.output), [8, [str(REPOSITORY / "synrepl" / "__init__.py")]]
        )
        self.assertEqual(list(scratch.iterdir()), [])
        # Executors may end after the driver's process, which has ended.
        deadline = time.monotonic() + PATIENCE_S
        while (left := _mentioning(scratch)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(left, [], "executors live on")

    def test_a_connect_server_finds_the_package(self) -> None:
        with connect_server(Path(self.mktemp()).absolute()) as address:
            ended = run_child(_TASK + _CONNECT, str(REPOSITORY), f"sc://{address}/;user_id=us")
        self.assertEqual((ended.status, ended.errors), (0, ""))
        report = json.loads(ended.output)
        self.assertEqual(report["rows"], 8)
        self.assertEqual(report["conf"], ["UTC", "3"])
        self.assertEqual(report["second"][0], "SessionOpen")
        self.assertEqual(report["static"][0], "SettingRefused")
        self.assertIn("spark.executor.memory", report["static"][1])
        self.assertTrue(report["environ"], "the environment is as it was")
        self.assertEqual(report["missing"][0], "ConnectMissing")
        self.assertIn("(grpc cannot be found)", report["missing"][1])


def _mentioning(path: Path) -> list[str]:
    """The command lines of processes that contain a path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(path) in (command := file.read_text(errors="replace")):
                found.append(command)
    return found
