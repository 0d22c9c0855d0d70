"""Removes rows from the lake that the database lost in a failover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.computed_columns import file_schema
from synrepl.pipeline.lake.data_files import DataFile, FileWriter, is_by_room, read_batches
from synrepl.pipeline.lake.failover.lost_rows import LostRows, lost_keys, summarize_lost
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.spark_tasks import pack, run_tasks
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_failovers import LossWindow, update_failovers
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.errors import original_error
from synrepl.pipeline.source.reading.schema import arrow_schema

#: Total size of the files that one task rewrites, in bytes.
TASK_BYTES = 64 << 20

_SWAPPED = pa.schema([("files", pa.string())])

#: A file and its replacement; None if no rows are left.
_Swap = tuple[DataFile, DataFile | None]


class OtherRowsDropped(StorageError):
    """files of {path} would lose {dropped} rows, and {lost} were lost by the database; nothing was dropped: check the lake before you try again"""


def drop_lost(
    spark: SparkSession, lake: Lake, source: SourceDatabase, dsn: str, streams: Sequence[str]
) -> dict[str, list[LostRows]]:
    """Remove the rows from the lake that the database lost in failovers.

    Call it within :meth:`.Lake.write_lock`. Each table is changed by one commit; a process that dies
    before it leaves the table unchanged.

    :returns: by stream, the rows removed
    :raises NotInTheLake: :raises NotConfirmed: :raises OlderServer: :raises OtherRowsDropped:
    :raises LakeFailed: :raises ReadingAway: :raises ReadFailed: :raises ReadElsewhere:
    """
    dropped = {}
    source.observe(streams)
    for stream in streams:
        table = lake.table(stream)
        known = table.failovers
        now = update_failovers(stream, known, table.position, source)
        try:
            found = [_drop(spark, table, source, dsn, window) for window in now.lost]
        except PySparkException as error:
            raise original_error(error) or error from None
        # Rows above the recorded positions have survived, or have been removed here as well.
        now = msgspec.structs.replace(now, lost=())
        if now != known:
            table.record_failovers(now)
        if rows := [row for each in found for row in each]:
            dropped[stream] = rows
    return dropped


def _drop(
    spark: SparkSession, table: StreamTable, source: SourceDatabase, dsn: str, window: LossWindow
) -> list[LostRows]:
    keys = lost_keys(spark, table, source, dsn, window).persist()
    try:
        lost = summarize_lost(keys)
        # Commits are lost as a whole, and so are facts.
        ids = keys.select("stream_id").distinct().toArrow().column(0).combine_chunks()
    finally:
        keys.unpersist()
    if not lost:
        return lost
    ends = pc.min_max(ids).as_py()
    files = [file for file in table.files if file.low <= ends["max"] and file.high >= ends["min"]]
    parts = [msgspec.json.encode(part) for part in pack(files, lambda file: file.size, TASK_BYTES)]
    swaps: list[_Swap] = []
    work = partial(_without, table.path, table.stream_schema, ids, table.epoch)
    for row in run_tasks(spark, parts, work, _SWAPPED, sum(file.rows for file in files)):
        swaps += msgspec.json.decode(row["files"], type=list[_Swap])
    rows = sum(old.rows - (0 if new is None else new.rows) for old, new in swaps)
    wanted = sum(each.rows for each in lost)
    if rows != wanted:
        raise OtherRowsDropped(path=table.path, dropped=rows, lost=wanted)
    new_files = [new for _, new in swaps if new is not None]
    table.rewrite([old for old, _ in swaps], new_files, change=True)
    return lost


def _without(
    folder: LakePath, stream_schema: StreamSchema, ids: pa.Array, epoch: int, part: bytes
) -> Iterator[pa.RecordBatch]:
    """Rewrite files without some facts; files without these facts stay."""
    schema = arrow_schema(stream_schema.columns)
    swaps: list[_Swap] = []
    for file in msgspec.json.decode(part, type=list[DataFile]):
        keys = read_batches(folder / file.name, pa.schema([schema.field("stream_id")]))
        if not any(pc.any(pc.is_in(each.column(0), value_set=ids)).as_py() for each in keys):
            continue
        by_room = is_by_room(folder / file.name)
        writer = FileWriter(folder, file_schema(stream_schema), epoch, by_room=by_room)
        for batch in read_batches(folder / file.name, schema):
            lost = pc.is_in(batch.column("stream_id"), value_set=ids)
            writer.write(batch.filter(pc.invert(lost)))
        swaps.append((file, writer.close()))
    encoded = msgspec.json.encode(swaps).decode()
    yield pa.RecordBatch.from_pylist([{"files": encoded}], schema=_SWAPPED)
