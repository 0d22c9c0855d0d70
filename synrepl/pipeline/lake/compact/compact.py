"""Compacts small files into large ones: fewer to open, and with rows in the order of tokens.

Merging all small files after each landing would rewrite the first rows again and again: some n² rows
in n landings. So files are merged by *tiers*, as in log-structured stores. A tier has :data:`GROWTH`
times the rows of the one below, and files are merged only if the result is in a higher tier than all
of them. Then a row is written once per tier, O(n log n) in total, and between two large files there
are fewer than ``GROWTH`` small files per tier.

Rows are merged in the order of tokens, with bounded memory. In files that are so large that they will not be merged
again, they are then sorted by room, see :mod:`.room_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from synrepl.core.errors import StorageError
from synrepl.core.tokens import Token
from synrepl.pipeline.lake.computed_columns import file_schema
from synrepl.pipeline.lake.data_files import DataFile, FileWriter, read_batches
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.spark_tasks import run_tasks
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema

#: Ratio of the rows of neighbouring tiers.
GROWTH = 4

_Group = list[DataFile]


def plan_compaction(files: Iterable[DataFile], target: int, *, full: bool = False) -> list[_Group]:
    """The groups of files to merge, each of two or more neighbours by stream ID.

    Files of at least half the target stay as they are, and no group spans them.

    :param spark: a session on demand is called only if files have many rows
    :param target: the target size of files, in bytes; a group has less than twice that
    :param full: merge all small files, regardless of tiers
    """
    found: list[_Group] = []
    ordered = sorted(files, key=lambda file: (file.low, file.high, file.name))
    for large, run in groupby(ordered, key=lambda file: _is_large([file], target)):
        if not large:
            for group in [list(run)] if full else _tiers(list(run)):
                found += (part for part in _cut(group, target) if len(part) > 1)
    return found


def _tiers(run: Sequence[DataFile]) -> list[_Group]:
    """Group neighbours that together reach a higher tier than their own."""
    groups = [[file] for file in run]
    for tier in range(_tier(_rows(run)) + 1):
        groups = list(_joined(groups, tier))
    return groups


def _joined(groups: Iterable[_Group], tier: int) -> Iterator[_Group]:
    for low, run in groupby(groups, key=lambda group: _tier(_rows(group)) <= tier):
        together = list(run)
        whole = [file for group in together for file in group]
        if low and _tier(_rows(whole)) > tier:
            yield whole
        else:
            yield from together


def _tier(rows: int) -> int:
    tier = 0
    while rows >= GROWTH:
        rows //= GROWTH
        tier += 1
    return tier


def _rows(files: Iterable[DataFile]) -> int:
    # In rows, not in bytes: merging small files reduces their bytes, never their rows.
    return sum(file.rows for file in files)


def _cut(group: Sequence[DataFile], target: int) -> list[_Group]:
    """Cut a group into parts of at least the target size; a small rest goes to the last part."""
    parts: list[_Group] = [[]]
    size = 0
    for file in group:
        if size >= target:
            parts.append([])
            size = 0
        parts[-1].append(file)
        size += file.size
    if len(parts) > 1 and size < target / 2:
        rest = parts.pop()
        parts[-1] += rest
    return parts


def _is_large(files: Iterable[DataFile], target: int) -> bool:
    """True if files become one that stays as it is."""
    return sum(file.size for file in files) >= target / 2


#: Number of rows of one file held at a time.
BATCH_ROWS = 8192

#: A row's sort key: its token and its number in the fact.
_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A file to merge.

    :ivar first: no row in it has a lower token
    """

    path: LakePath
    first: Token


def merge_files(
    sources: Sequence[MergeInput], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of all files, each once.

    The result is ordered if each file is, which large ones are not. Only files whose ranges overlap are open at a time, with
    a batch of each. So memory depends on the overlap, not on the number of files.

    :param schema: of the result; columns that a file lacks are null
    """
    waiting = sorted(sources, key=lambda source: source.first, reverse=True)
    opened: list[_MergeCursor] = []
    while opened or waiting:
        if not opened:
            opened = _open(waiting.pop(), schema, batch_rows)
            continue
        # All open files have rows up to here. Files that may have lower rows are opened first.
        cut = min(run.last for run in opened)
        while waiting and waiting[-1].first <= cut[0]:
            opened += _open(waiting.pop(), schema, batch_rows)
            cut = min(run.last for run in opened)
        yield _sorted([run.taken(cut) for run in opened], schema)
        opened = [run for run in opened if run.more()]


class _MergeCursor:
    """An open file and the rows of it that come next."""

    def __init__(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._rest = rest
        self._held: pa.RecordBatch | None = None

    def more(self) -> bool:
        """Make sure that rows are held; False if there are no more."""
        while self._held is None or not self._held.num_rows:
            self._held = next(self._rest, None)
            if self._held is None:
                return False
        return True

    @property
    def last(self) -> _Place:
        """The sort key of the last row held."""
        tokens, numbers = _places(self._held)
        token = tokens.max()
        return int(token), int(numbers[tokens == token].max())

    def taken(self, cut: _Place) -> pa.RecordBatch:
        """Take out the rows held up to a sort key."""
        assert self._held is not None
        tokens, numbers = _places(self._held)
        ready = (tokens < cut[0]) | ((tokens == cut[0]) & (numbers <= cut[1]))
        if ready.all():
            taken, self._held = self._held, None
            return taken
        taken = self._held.filter(pa.array(ready))
        self._held = self._held.filter(pa.array(~ready))
        return taken


def _open(source: MergeInput, schema: pa.Schema, batch_rows: int) -> list[_MergeCursor]:
    run = _MergeCursor(read_batches(source.path, schema, batch_rows=batch_rows))
    return [run] if run.more() else []


def _sorted(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    whole = [part for part in parts if part.num_rows]
    batch = whole[0] if len(whole) == 1 else _one(whole, schema)
    tokens, numbers = _places(batch)
    order = np.lexsort((numbers, tokens))
    if (order[:-1] < order[1:]).all():
        return batch
    return batch.take(pa.array(order))


def _one(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = [
        pa.concat_arrays([part.column(name) for part in parts]) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _places(batch: pa.RecordBatch | None) -> tuple[Any, Any]:
    assert batch is not None
    ids = batch.column("stream_id").to_numpy(zero_copy_only=False)
    return np.abs(ids), batch.column("row_no").to_numpy(zero_copy_only=False)


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
    spark: SparkSession | SessionOnDemand,
    lake: Lake,
    stream: str,
    *,
    target: int = TARGET_BYTES,
    full: bool = False,
    progress: Progress = lambda done, of: None,
) -> CompactionReport:
    """Merge neighbouring small files of a stream, as selected by :func:`plan_compaction`.

    Call it within :meth:`.Lake.write_lock`. Each new file is committed as soon as it is written. A
    process that dies before leaves the table unchanged, and perhaps an unused file.

    :param spark: a session on demand is called only if files have many rows
    :param target: the target size of a file, in bytes
    :param full: merge all small files, even where it is not worth it
    :raises NotInTheLake: :raises LakeFailed: :raises FileNotAsWritten:
    """
    table = lake.table(stream)
    groups = plan_compaction(table.files, target, full=full)
    wanted = sum(map(len, groups))
    work = partial(_merge_group, table.path, table.stream_schema, table.epoch, target)
    done = CompactionReport(stream)
    parts = [_part(number, each) for number, each in enumerate(groups)]
    rows = sum(file.rows for group in groups for file in group)
    for row in run_tasks(spark, parts, work, _MERGED, rows):
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
    folder: LakePath, stream_schema: StreamSchema, epoch: int, target: int, part: bytes
) -> Iterator[pa.RecordBatch]:
    number, group = msgspec.json.decode(part, type=tuple[int, list[DataFile]])
    schema = arrow_schema(stream_schema.columns)
    by_room = _is_large(group, target)
    writer = FileWriter(folder, file_schema(stream_schema), epoch, by_room=by_room)
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
