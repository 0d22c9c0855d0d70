"""Erases from a lake: empties cells in all files, and removes the files that contained them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from synrepl.core.errors import StorageError
from synrepl.pipeline.lake.computed_columns import file_schema
from synrepl.pipeline.lake.data_files import DataFile, FileWriter, is_by_room, read_batches
from synrepl.pipeline.lake.erase.erasure_record import write_erasure_record
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.erase.mask import mask, mask_quarantined, searched_columns
from synrepl.pipeline.lake.erase.pending import PendingErasures
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.spark_tasks import pack, run_tasks
from synrepl.pipeline.lake.storage import LakePath, remove_tree
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.stream_schema import QUARANTINE_CELLS, StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.streams.columns import Column

#: Total size of the files that one task searches, in bytes.
TASK_BYTES = 64 << 20

#: Called with the number of files searched so far, and the number to search.
Progress = Callable[[int, int], object]

_LOOKED = pa.schema([("files", pa.int64()), ("rows", pa.int64()), ("rewritten", pa.string())])


class RowsLost(StorageError):
    """file {path} should have {expected} rows, and {found} were read; nothing was erased from it: check the lake before you erase again"""


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """The result of erasing.

    :ivar files: the number of files rewritten
    :ivar rows: the number of rows with an emptied cell
    :ivar subjects: the number of new subjects
    :ivar redactions: the number of new redactions
    """

    files: int
    rows: int
    subjects: int
    redactions: int


def erase(
    spark: SparkSession | SessionOnDemand,
    lake: Lake,
    todo: PendingErasures,
    progress: Progress = lambda done, of: None,
) -> ErasureReport:
    """Empty all cells that contain new subjects or redacted events, and remove the old files.

    Call it within :meth:`.Lake.write_lock`; it waits until none of our own processes reads the lake.
    Old files are removed at once, without the retention of other changes, so plain readers of older
    versions fail. Erasures are
    recorded as done only when the last old file is gone. If a process dies before, the next run
    repeats the work, which is idempotent.

    :raises LakeFailed: :raises ErasureRecordUnreadable: :raises FileNotAsWritten:
    """
    files = rows = 0
    if todo.new:
        jobs = [*_jobs(lake, todo.new)]
        if lake.is_shared:
            # What others have begun to land was masked without what is new here, and would come late.
            for table, _ in jobs:
                table.begin_erasure()
        searched = [(table, masking) for table, masking in jobs if masking.searched]
        seen = _Progress(progress, sum(len(masking.files(table)) for table, masking in searched))
        for table, masking in searched:
            swaps, changed = _masked(spark, table, masking, seen)
            if swaps:
                table.rewrite([old for old, _ in swaps], [new for _, new in swaps], change=True)
            files += len(swaps)
            rows += changed
        with lake.removal_lock():
            # In all tables, because an interrupted run may have left files in any of them.
            for table, _ in jobs:
                if lake.is_shared:
                    table.remove_before_epoch()
                else:
                    table.remove_unused(retention_hours=0)
            if not lake.is_shared:  # another process may be writing one
                _remove_strays(lake)
    after = todo.record.updated(todo.known.subjects, todo.upto)
    if after != todo.record:
        write_erasure_record(lake, after)
    redactions = len(todo.new.redacted | todo.new.applied.events)
    return ErasureReport(files, rows, len(todo.new.subjects), redactions)


@dataclass(frozen=True, slots=True)
class _Masking:
    """Masks the rows of a table; pickled for tasks.

    :ivar quarantined: the table is a quarantine
    """

    stream_schema: StreamSchema
    erasures: Erasures
    quarantined: bool

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.quarantined:
            return mask_quarantined(batch, self.erasures)
        return mask(batch, self.stream_schema, self.erasures)

    @property
    def searched(self) -> list[Column]:
        """The columns to look through first; none if the table has nothing to mask."""
        if not self.quarantined:
            return searched_columns(self.stream_schema, self.erasures)
        return list(QUARANTINE_CELLS) if self.erasures.subjects else []

    def for_tasks(self) -> _Masking:
        """The same without what chooses files."""
        applied = self.erasures.applied.without_times()
        return replace(self, erasures=replace(self.erasures, applied=applied))

    def files(self, table: StreamTable) -> Sequence[DataFile]:
        """The files of a table that may have something to mask."""
        times = self.erasures.applied.times
        columns = {column.name for column in self.searched}
        if times is None or "redacted" not in columns or self.erasures.subjects:
            return table.files
        return [file for file in table.files if file.may_have("origin_server_ts", times)]


def _jobs(lake: Lake, erasures: Erasures) -> Iterator[tuple[StreamTable, _Masking]]:
    for stream in lake.streams:
        for quarantined, table in (False, lake.table(stream)), (True, lake.quarantine(stream)):
            if table is not None:
                yield table, _Masking(table.stream_schema, erasures, quarantined)


def _remove_strays(lake: Lake) -> None:
    """Remove folders without a table, which interrupted landings have left, with the rows in them."""
    for parent in lake.path / "streams", lake.path / "quarantine":
        for folder in [*parent.iterdir()] if parent.is_dir() else ():
            if folder.is_dir() and not StreamTable.exists(folder):
                remove_tree(folder)


class _Progress:
    """Counts the files searched."""

    def __init__(self, progress: Progress, whole: int) -> None:
        self._progress = progress
        self._whole = whole
        self._done = 0

    def add(self, files: int) -> None:
        self._done += files
        self._progress(self._done, self._whole)


def _masked(
    spark: SparkSession | SessionOnDemand,
    table: StreamTable,
    masking: _Masking,
    seen: _Progress,
) -> tuple[list[tuple[DataFile, DataFile]], int]:
    """Mask a table in tasks: the files with their replacements, and the number of rows changed."""
    swaps: list[tuple[DataFile, DataFile]] = []
    rows = 0
    files = masking.files(table)
    parts = [msgspec.json.encode(part) for part in pack(files, lambda file: file.size, TASK_BYTES)]
    work = partial(_look_through, table.path, masking.for_tasks(), table.epoch)
    for row in run_tasks(spark, parts, work, _LOOKED, sum(file.rows for file in files)):
        swaps += msgspec.json.decode(row["rewritten"], type=list[tuple[DataFile, DataFile]])
        rows += row["rows"]
        seen.add(row["files"])
    return swaps, rows


def _look_through(
    folder: LakePath, masking: _Masking, epoch: int, part: bytes
) -> Iterator[pa.RecordBatch]:
    """Search files, and rewrite those with something to erase."""
    swaps: list[tuple[DataFile, DataFile]] = []
    rows = 0
    files = msgspec.json.decode(part, type=list[DataFile])
    for file in files:
        if _has_hit(folder / file.name, masking):
            new, changed = _rewritten(folder, file, masking, epoch)
            swaps.append((file, new))
            rows += changed
    report = {"files": len(files), "rows": rows, "rewritten": msgspec.json.encode(swaps).decode()}
    yield pa.RecordBatch.from_pylist([report], schema=_LOOKED)


def _has_hit(path: LakePath, masking: _Masking) -> bool:
    found = read_batches(path, arrow_schema(masking.searched))
    return any(masking(batch) is not batch for batch in found)


def _rewritten(
    folder: LakePath, file: DataFile, masking: _Masking, epoch: int
) -> tuple[DataFile, int]:
    schema = arrow_schema(masking.stream_schema.columns)
    by_room = is_by_room(folder / file.name)
    writer = FileWriter(folder, file_schema(masking.stream_schema), epoch, by_room=by_room)
    changed = 0
    for batch in read_batches(folder / file.name, schema):
        masked = masking(batch)
        changed += _rows_changed(batch, masked)
        writer.write(masked)
    new = writer.close()
    if new is None or new.rows != file.rows:
        found = 0 if new is None else new.rows
        raise RowsLost(path=folder / file.name, expected=file.rows, found=found)
    return new, changed


def _rows_changed(before: pa.RecordBatch, after: pa.RecordBatch) -> int:
    if before is after:
        return 0
    changed: set[int] = set()
    for old, new in zip(before.columns, after.columns, strict=True):
        if old is not new and not old.equals(new):
            cells = zip(old.to_pylist(), new.to_pylist(), strict=True)
            changed.update(row for row, (was, is_) in enumerate(cells) if was != is_)
    return len(changed)
