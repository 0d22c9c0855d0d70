"""Real Spark servers for tests, from the pip package, on loopback: Connect, and a standalone cluster."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pyspark

from synrepl.pipeline.session.requirements import find_java
from system_tests.pipeline.spark_fixture import PATIENCE_S, REPOSITORY

_HOME = Path(pyspark.__file__).parent


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run a Spark Connect server; yields its address for ``sc://``."""
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
    command = [
        *("spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
        "spark-internal",
    ]
    pattern = r"Connect server started at:? .*?(127\.0\.0\.1:\d+)"
    with running(folder, command, pattern) as address:
        yield address


@contextmanager
def standalone_cluster(folder: Path, workers: int = 1, cores: int = 2) -> Iterator[str]:
    """Run a master with workers of some cores each; yields the master's URL, ``spark://…``."""
    package = "org.apache.spark.deploy"
    master = ["spark-class", f"{package}.master.Master", "--host", "127.0.0.1"]
    worker = ["spark-class", f"{package}.worker.Worker", "--host", "127.0.0.1"]
    worker += ["--cores", str(cores), "--memory", "1200m", "--work-dir", str(folder / "work")]
    ports = ["--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        starting = r"Starting Spark master at (spark://\S+)"
        url = stack.enter_context(running(folder, [*master, *ports], starting))
        registered = r"Successfully registered with master ()"
        for _ in range(workers):
            stack.enter_context(running(folder, [*worker, *ports, url], registered))
        yield url


@contextmanager
def running(folder: Path, command: list[str], pattern: str, **environ: str) -> Iterator[str]:
    """Run a command of Spark, or one with its path; yields the group that ``pattern`` matches in its output.

    :param pattern: matches when the command is ready
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [_HOME / "bin" / command[0], *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home_for_spark(folder)),
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
            **environ,
        },
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = Thread(target=_read, args=(process, lines))
    reader.start()
    try:
        yield _ready(lines, pattern)
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


def _ready(lines: queue.SimpleQueue[str], pattern: str) -> str:
    heard = []
    while line := lines.get(timeout=PATIENCE_S):
        heard.append(line)
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError("it ended: " + "".join(heard))
