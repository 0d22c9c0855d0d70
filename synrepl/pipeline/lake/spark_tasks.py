"""Runs work in Spark tasks that read and write files themselves, so that no row goes through the JVM.

Work on few rows is done in this process, if Spark is to be opened only when it is needed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.on_demand import SessionOnDemand, on_demand
from synrepl.pipeline.source.errors import original_error

T = TypeVar("T")

#: Does one part of the work; the batches it yields go to the driver.
Work = Callable[[bytes], Iterator[pa.RecordBatch]]

#: What Spark runs in a task.
_Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_LACKING = re.compile(r"ModuleNotFoundError: No module named '([^']{1,100})'")

#: Maximum number of parts in one Spark job. Jobs run one after the other, so a core that is done
#: waits for the last task of a job: once in some billion rows.
AT_ONCE = 4096


class TaskFailed(StorageError):
    """a task of Spark was lost: {reason}; what it did does not count, so start again"""


class WorkerLacks(StorageError):
    """Spark's Python workers cannot import {module!r}: each executor needs synrepl[spark] in the Python that PYSPARK_PYTHON names here (python3 by default)"""


def run_tasks(
    spark: SparkSession | SessionOnDemand,
    parts: Sequence[bytes],
    work: Work,
    schema: pa.Schema,
    rows: int,
) -> Iterator[dict[str, Any]]:
    """Run each part in its own task, and yield the resulting rows in the order of the parts.

    A failed task may run again on another machine, so ``work`` may have no effect unless its result
    is used.

    :param work: pickled for the tasks, with everything that it refers to
    :param schema: of the batches that it yields; they should be small, as they go through the driver
    :param rows: about how many rows the parts have, which decides whether Spark is worth it
    :raises TaskFailed: a task died more often than Spark retries it
    :raises WorkerLacks: the executors lack a package
    :raises: the error that ``work`` raised, if it is one of ours
    """
    session = on_demand(spark)
    if not session.is_needed(rows):
        for part in parts:
            for batch in work(part):
                yield from batch.to_pylist()
        return
    ddl = from_arrow_schema(schema)
    for begin in range(0, len(parts), AT_ONCE):
        some = PackedParts.of(parts[begin : begin + AT_ONCE])
        yield from _collected(session(), partial(_run, some, work), len(some), ddl)


@dataclass(frozen=True, slots=True)
class PackedParts:
    """The parts of a job, compressed: each task receives them all, and unpacks its own.

    Parts are statements and names of files, which differ in a few numbers, so each is compressed
    with the first one as its dictionary: to some 100 bytes.
    """

    first: bytes
    rest: tuple[bytes, ...]

    @classmethod
    def of(cls, parts: Sequence[bytes]) -> PackedParts:
        """Compress one or more parts."""
        first, *others = parts
        return cls(zlib.compress(first), tuple(_packed(each, first) for each in others))

    def __len__(self) -> int:
        return 1 + len(self.rest)

    def __getitem__(self, number: int) -> bytes:
        first = zlib.decompress(self.first)
        if not number:
            return first
        unpacking = zlib.decompressobj(zdict=first[-_WINDOW:])
        return unpacking.decompress(self.rest[number - 1]) + unpacking.flush()


#: How far back zlib looks, in bytes.
_WINDOW = 32_768


def _packed(part: bytes, like: bytes) -> bytes:
    packing = zlib.compressobj(zdict=like[-_WINDOW:])
    return packing.compress(part) + packing.flush()


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that a session runs at the same time now; 1 or more.

    :raises TaskFailed: Spark has died
    """
    context = getattr(spark, "sparkContext", None)
    try:
        if context is not None:
            return max(1, int(context.defaultParallelism))
        # Over Connect only a query shows it: by default, a range has a partition for each core.
        ids = spark.range(1 << 20).select(f.spark_partition_id())
        return max(1, ids.distinct().count())
    except (PySparkException, Py4JError, OSError) as error:
        raise _lost(error) from error


def _collected(
    spark: SparkSession, run: _Batches, tasks: int, ddl: StructType
) -> list[dict[str, Any]]:
    try:
        # A JVM that has ended is noticed by the first call, whichever that is.
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(run, ddl).collect()
        return [row.asDict() for row in rows]
    except (PySparkException, Py4JError, OSError) as error:
        ours = original_error(error)
        if ours is None:
            ours = _lost(error)
        raise ours from error


def _lost(error: Exception) -> StorageError:
    """An error with Spark's message without the stack: its first line, and the last of a worker's traceback."""
    java = getattr(error, "java_exception", None)
    if java is None and isinstance(error, Py4JError):
        return TaskFailed(reason="Spark's JVM has ended, or does not answer")
    lines = str(error if java is None else java.getMessage()).splitlines()
    said = [*lines[:1], *(line for line in reversed(lines[1:]) if line.strip())][:2]
    if found := _LACKING.match(said[-1] if said else ""):
        return WorkerLacks(module=found[1])
    shown = said if any(line.startswith("Traceback ") for line in lines) else said[:1]
    return TaskFailed(reason=" ".join(" ".join(shown).split())[:500] or type(error).__name__)


def _run(
    parts: PackedParts, work: Work, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from work(parts[number])


#: Least size of a task that is one of several, in rows: it takes a few times as long as to start it.
LEAST_TASK_ROWS = 60_000


def pack_for_cores(
    items: Iterable[T], size: Callable[[T], int], most: int, cores: int
) -> list[list[T]]:
    """Like :func:`pack`, with fewer rows for each task if otherwise cores would have nothing to do.

    :param size: in rows
    :param most: of one task, in rows
    """
    all_items = [*items]
    share = -(-sum(map(size, all_items)) // max(1, cores))
    return list(pack(all_items, size, min(most, max(share, LEAST_TASK_ROWS))))


def pack(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Group items in their order, one list per task, of at most ``most`` in size or of one larger item."""
    part: list[T] = []
    held = 0
    for item in items:
        if part and held + size(item) > most:
            yield part
            part, held = [], 0
        part.append(item)
        held += size(item)
    if part:
        yield part
