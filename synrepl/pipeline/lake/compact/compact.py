"""Compacts small files into large ones: fewer to open, and with rows in the order of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.compact.merge import MergeInput, merge_files
from synrepl.pipeline.lake.compact.policy import plan_compaction
from synrepl.pipeline.lake.data_files import DataFile, FileWriter
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.spark_tasks import run_tasks
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema

#: Target size of a file, in bytes.
TARGET_BYTES = 128 << 20

#: Called with the number of files compacted so far, and the number to compact.
Progress = Callable[[int, int], object]

_MERGED = pa.schema([("part", pa.int64()), ("file", pa.string())])


class RowsDiffer(StorageError):
    """files of {path} should have {expected} rows together, and {found} were read from them; nothing was changed: check the lake before it is compacted again"""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of compacting a stream's table.

    :ivar joined: the number of files replaced
    :ivar made: the number of files that replaced them
    :ivar rows: the number of rows in them
    :ivar before: bytes of the files replaced, which exist until :meth:`.StreamTable.remove_unused`
    :ivar after: bytes of the new files
    """

    stream: str
    joined: int = 0
    made: int = 0
    rows: int = 0
    before: int = 0
    after: int = 0


def compact(
    spark: SparkSession,
    lake: Lake,
    stream: str,
    *,
    target: int = TARGET_BYTES,
    full: bool = False,
    progress: Progress = lambda done, of: None,
) -> CompactionReport:
    """Merge neighbouring small files of a stream, as selected by :mod:`.compact.policy`.

    Call it within :meth:`.Lake.write_lock`. Each new file is committed as soon as it is written. A
    process that dies before leaves the table unchanged, and perhaps an unused file.

    :param target: the target size of a file, in bytes
    :param full: merge all small files, even where it is not worth it
    :raises NotInTheLake: :raises LakeFailed: :raises FileNotAsWritten:
    """
    table = lake.table(stream)
    groups = plan_compaction(table.files, target, full=full)
    wanted = sum(map(len, groups))
    work = partial(_merge_group, table.path, table.stream_schema)
    done = CompactionReport(stream)
    for row in run_tasks(spark, [_part(n, each) for n, each in enumerate(groups)], work, _MERGED):
        group, new = groups[row["part"]], msgspec.json.decode(row["file"], type=DataFile)
        table.rewrite(group, [new], change=False)
        done = CompactionReport(
            stream,
            done.joined + len(group),
            done.made + 1,
            done.rows + new.rows,
            done.before + sum(file.size for file in group),
            done.after + new.size,
        )
        progress(done.joined, wanted)
    return done


def _part(number: int, group: list[DataFile]) -> bytes:
    return msgspec.json.encode((number, group))


def _merge_group(
    folder: Path, stream_schema: StreamSchema, part: bytes
) -> Iterator[pa.RecordBatch]:
    number, group = msgspec.json.decode(part, type=tuple[int, list[DataFile]])
    schema = arrow_schema(stream_schema.columns)
    writer = FileWriter(folder, schema)
    sources = [
        MergeInput(folder / file.name, -file.high if stream_schema.counts_down else file.low)
        for file in group
    ]
    for batch in merge_files(sources, schema):
        writer.write(batch)
    new = writer.close()
    expected = sum(file.rows for file in group)
    if new is None or new.rows != expected:
        found = 0 if new is None else new.rows
        raise RowsDiffer(path=folder, expected=expected, found=found)
    yield pa.RecordBatch.from_pylist(
        [{"part": number, "file": msgspec.json.encode(new).decode()}], schema=_MERGED
    )
