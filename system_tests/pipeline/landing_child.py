"""A landing process that is killed at a given step: ``python -m system_tests.pipeline.landing_child``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land import landing
from synrepl.pipeline.lake.table_log import TableLog
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from system_tests.pipeline.landing_case import Hook, land_in_hook, rows_of
from system_tests.pipeline.spark_fixture import CLUSTER, LOCAL

Work = Callable[[], Iterator[pa.RecordBatch]]


def just(work: Work) -> Iterator[pa.RecordBatch]:
    """Do the work."""
    return work()


def kill(pid: int, work: Work) -> Iterator[pa.RecordBatch]:
    """Kill a process when a task has written its files."""
    done = list(work())
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    yield from done


def die_once(flag: Path, work: Work, executor: bool = False) -> Iterator[pa.RecordBatch]:
    """Kill the first worker that has written its files.

    :param executor: kill its executor instead: the JVM that started the worker's parent
    """
    done = list(work())
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        yield from done
    else:
        os.kill(_parent(os.getppid()) if executor else os.getpid(), signal.SIGKILL)


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def wait_amid(reached: Path, go_on: Path, work: Work) -> Iterator[pa.RecordBatch]:
    """Signal in one pipe that a task has read its first rows, and wait for another pipe."""
    real = ChunkReader.batches

    def batches(self: ChunkReader, *args: Any) -> Iterator[pa.RecordBatch]:
        found = real(self, *args)
        yield next(found)
        reached.open("w").close()
        go_on.open().close()
        yield from found

    ChunkReader.batches = batches  # type: ignore[method-assign]
    try:
        yield from work()
    finally:
        ChunkReader.batches = real  # type: ignore[method-assign]


def main(dsn: str, folder: str, point: str) -> None:
    """Land all of a database.

    :param point: ``task``, ``files``, ``commit N`` (before the Nth one), ``commits`` (after the
        first one, while others are under way): killed there. Or
        ``cluster {"worker": [LAKE, FLAG], "executor": [LAKE, FLAG]}``: on a cluster, into these
        lakes instead; while it lands into each, one such process is killed
    """
    where, _, which = point.partition(" ")
    source = open_source_database(dsn, "child")
    if where == "cluster":
        kills = json.loads(which)
        with open_session(CLUSTER) as spark:
            for what, (lake, flag) in kills.items():
                hook = partial(die_once, Path(flag), executor=what == "executor")
                _land(spark, source, dsn, lake, hook)
        for lake, _ in kills.values():
            _tell(lake)
        return
    if where == "task":
        hook = partial(kill, os.getpid())
    else:
        hook = just
        if where == "files":
            _kill_after_tasks()
        elif where == "commits":
            _kill_amid_commits()
        else:
            _kill_before_commit(int(which))
    with open_session(LOCAL) as spark:
        _land(spark, source, dsn, folder, hook)


def _land(spark: SparkSession, source: SourceDatabase, dsn: str, folder: str, hook: Hook) -> None:
    lake = Lake.open_or_create(Path(folder), source.server, source.is_lossy)
    with lake.write_lock():
        land = partial(land_in_hook, hook)
        made = landing.Landing(spark, lake, source, dsn, task_rows=100, land=land)
        list(made.rounds(source.streams))


def _tell(folder: str) -> None:
    lake = Lake(Path(folder))
    for stream in lake.streams:
        sys.stdout.write(f"{stream} {len(rows_of(lake.table(stream)))}\n")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_after_tasks() -> None:
    real = landing.run_tasks  # type: ignore[attr-defined]

    def run_tasks(*args: Any) -> Iterator[Any]:
        yield from real(*args)
        _die()

    landing.run_tasks = run_tasks  # type: ignore[attr-defined]


def _kill_before_commit(number: int) -> None:
    real = os.link
    left = [number]
    one_by_one = Lock()  # several tables are committed to at once

    def link(draft: Path, commit: Path) -> None:
        with one_by_one:
            left[0] -= "streams" in commit.parts
            if not left[0]:
                _die()  # the draft of the commit stays
            real(draft, commit)

    os.link = link  # type: ignore[assignment]


def _kill_amid_commits() -> None:
    real = TableLog.add_files

    def commit(*args: Any) -> bool:
        real(*args)
        _die()  # others have begun
        return True

    TableLog.add_files = commit  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
