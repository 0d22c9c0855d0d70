"""Watermarks: the token that each stream had reached at recorded times.

Rows have no time of their own. Each mark says that a stream was on record, or landed, up to a token
at a time; rows between two marks of a stream arrived between their times.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema
from deltalake.transaction import AddAction, RemoveAction

from synrepl.core.errors import StorageError
from synrepl.core.tokens import Token
from synrepl.pipeline.lake.data_files import DataFile, damage_of
from synrepl.pipeline.lake.in_parallel import in_parallel
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import (
    ObjectUnreadable,
    make_durable,
    open_input,
    open_output,
    plain_error,
)
from synrepl.pipeline.lake.table import DEFAULT_RETENTION_HOURS, StreamTable, retention_properties
from synrepl.pipeline.lake.table_log import (
    LOG,
    LakeConflict,
    LakeFailed,
    TableLog,
    lake_errors,
    remove_unused,
)
from synrepl.storage.position_marks import PositionMark

#: Minimum time between two marks of one stream, in seconds.
MIN_SPACING_S = 60.0

#: Number of small files, one for each append, that are compacted into one.
MAX_FILES = 100

SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("token", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)

#: The application whose transactions are the replacements of files.
_REWRITES = "synrepl/rewrites"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WatermarksDamaged(StorageError):
    """file {path} of the lake's watermarks is damaged: {reason}. It was left as it is; 'synrepl lake repair' names the marks that are lost, and goes on without them"""


class Extremes(NamedTuple):
    """The least and the greatest value of a column."""

    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class MarksFile:
    """A file of watermarks, as the table's log describes it.

    :ivar size: in bytes
    :ivar marks: the number of marks
    :ivar extremes: by column, as far as the log has them
    """

    name: str
    size: int
    marks: int
    extremes: Mapping[str, Extremes]

    @property
    def stats(self) -> str:
        """The statistics in the log, as JSON."""
        statistics = {
            "numRecords": self.marks,
            "minValues": {name: each.low for name, each in self.extremes.items()},
            "maxValues": {name: each.high for name, each in self.extremes.items()},
            "nullCount": dict.fromkeys(SCHEMA.names, 0),
        }
        return msgspec.json.encode(statistics).decode()


@dataclass(frozen=True, slots=True)
class DamagedMarks:
    """A file of watermarks that cannot be read as it was written.

    :ivar found: what is there instead
    """

    file: MarksFile
    found: str


class Watermarks:
    """The marks of a lake; to add some, construct and use this within :meth:`.Lake.write_lock`."""

    def __init__(self, lake: Lake) -> None:
        self.path = lake.path / "marks"
        self._newest: dict[str, PositionMark] | None = None
        self._log: TableLog | None = None

    def record(self, stream: str, token: Token, at: float) -> bool:
        """Record the position of one stream, see :meth:`record_all`; True if a mark was added."""
        return bool(self.record_all({stream: token}, at))

    def record_all(self, tokens: Mapping[str, Token], at: float) -> int:
        """Record the positions of streams in one commit: of those that advanced and have no mark of the last minute.

        :param tokens: by stream, the linear position
        :param at: the time at which the positions were read, in seconds since the epoch
        :returns: the number of marks added
        :raises WatermarksDamaged: :raises LakeFailed: the table could not be read or written
        """
        newest = self._newest_marks()
        new = {
            stream: PositionMark(at, token)
            for stream, token in tokens.items()
            if _is_due(newest.get(stream), token, at)
        }
        self._append(new.items())
        newest.update(new)
        return len(new)

    def import_marks(self, marks: Mapping[str, Iterable[PositionMark]]) -> int:
        """Add marks from elsewhere, by stream, unless they are present; return the number added.

        :raises WatermarksDamaged: :raises LakeFailed: the table could not be read or written
        """
        wanted = {
            (stream, mark.token, _time(mark)): (stream, mark)
            for stream, each in marks.items()
            for mark in each
        }
        known = self.table()
        tokens = pa.array([token for _, token, _ in wanted], pa.int64())
        near = known.filter(pc.is_in(known["token"], tokens)).to_pylist()
        there = {(row["stream"], row["token"], row["at"]) for row in near}
        new = [wanted[key] for key in sorted(wanted.keys() - there)]
        self._append(new)
        self._newest = None
        return len(new)

    def table(self) -> pa.Table:
        """All marks, unordered, with the columns of :data:`SCHEMA`.

        :raises WatermarksDamaged: :raises LakeFailed:
        """
        log = self._opened()
        found = [] if log is None else in_parallel(self._read, _files(log), self.path)
        return pa.concat_tables([SCHEMA.empty_table(), *found])

    def find_damaged(self) -> list[DamagedMarks]:
        """The files that are missing or cannot be read. Reads all files.

        :raises LakeFailed: the log cannot be read, or the object store does not give a file
        """
        log = self._opened()
        files = [] if log is None else _files(log)
        found = in_parallel(self._damage_of, files, self.path)
        return [DamagedMarks(file, why) for file, why in zip(files, found, strict=True) if why]

    def take_out(self, damaged: Sequence[DamagedMarks]) -> None:
        """Go on without damaged files; they stay where they are until unused files are removed.

        Call it within :meth:`.Lake.write_lock`.

        :raises LakeFailed: the table could not be written
        :raises LakeConflict: another process has replaced files meanwhile
        """
        log = self._opened()
        if log is not None and damaged:
            self._replace(log, [each.file for each in damaged], [], change=True)
        self._newest = None

    def remove_unused(self, retention_hours: int) -> int:
        """Delete files that no longer belong to the table, and return their number.

        Call it within :meth:`.Lake.write_lock` and :meth:`.Lake.removal_lock`.

        :param retention_hours: see :meth:`.StreamTable.remove_unused`
        """
        log = self._opened()
        if log is None:
            return 0
        log.make_durable()  # without the last commit, the table would need what is deleted
        return remove_unused(self.path, log.delta, retention_hours)

    def _append(self, marks: Iterable[tuple[str, PositionMark]]) -> None:
        rows = [
            {"stream": stream, "token": mark.token, "at": _time(mark)} for stream, mark in marks
        ]
        if not rows:
            return
        log = self._opened() or self._created()
        file = self._write(pa.Table.from_pylist(rows, schema=SCHEMA))
        if not log.add_files([file], {}, "mark"):
            self._replace(log, [], [file], change=True)
        old = _files(log)
        if len(old) > MAX_FILES:
            rewritten = self._write(pa.concat_tables(in_parallel(self._read, old, self.path)))
            with suppress(LakeConflict):  # another process has just done it
                self._replace(log, old, [rewritten], change=False)

    def _write(self, marks: pa.Table) -> MarksFile:
        """Write a file, which is durable before a commit names it."""
        path = self.path / f"part-{uuid.uuid4().hex}.parquet"
        with lake_errors(self.path, "written"):
            with open_output(path) as sink:
                pq.write_table(marks, sink, compression="zstd")
                size = sink.tell()
            make_durable(path)
        ends = {name: pc.min_max(marks[name]).as_py() for name in SCHEMA.names}
        extremes = {name: Extremes(each["min"], each["max"]) for name, each in ends.items()}
        return MarksFile(path.name, size, marks.num_rows, extremes)

    def _replace(
        self, log: TableLog, old: Sequence[MarksFile], new: Sequence[MarksFile], *, change: bool
    ) -> None:
        """Replace files by others, in one commit of delta-rs.

        :param change: the marks differ, and not only their arrangement
        :raises LakeConflict: another process has replaced files meanwhile
        """
        delta, apps = log.delta, {}
        if old:
            # After an own commit it has those of others, which may have replaced the same files.
            if gone := {file.name for file in old} - {file.name for file in _files(log)}:
                reason = (
                    f"it no longer has {len(gone)} of the files to replace, such as {min(gone)}"
                )
                raise LakeConflict(path=self.path, what="written", reason=reason)
            # Two replacements that begin at one version have the same number, so one of them fails.
            apps = {_REWRITES: (log.app_version(_REWRITES) or 0) + 1}
        now = int(time.time() * 1000)
        added = [AddAction(file.name, file.size, {}, now, change, file.stats) for file in new]
        removed = [
            RemoveAction(file.name, change, now, size=file.size, partition_values={})
            for file in old
        ]
        log.commit(delta, [*added, *removed], apps, "mark")

    def _read(self, file: MarksFile) -> pa.Table:
        path = self.path / file.name
        with lake_errors(self.path, "read"):
            try:
                with open_input(path) as opened:
                    marks = pq.read_table(opened, columns=SCHEMA.names).cast(SCHEMA)
                marks.validate(full=True)  # that names are UTF-8, too
                return marks
            except ObjectUnreadable:
                raise
            except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
                reason = damage_of(path, _as_written(file)) or _misread(error)
                raise WatermarksDamaged(path=path, reason=reason) from None

    def _damage_of(self, file: MarksFile) -> str:
        with lake_errors(self.path, "read"):
            if reason := damage_of(self.path / file.name, _as_written(file)):
                return reason
        try:
            self._read(file)
        except WatermarksDamaged as error:
            return str(error.facts["reason"])
        return ""

    def _newest_marks(self) -> dict[str, PositionMark]:
        if self._newest is None:
            rising = self.table().sort_by("token")
            last = rising.group_by("stream", use_threads=False).aggregate(
                [("token", "last"), ("at", "last")]
            )
            self._newest = {
                row["stream"]: PositionMark(row["at_last"].timestamp(), row["token_last"])
                for row in last.to_pylist()
            }
        return self._newest

    def _opened(self) -> TableLog | None:
        """The log of the table as it is now; None if there is no table."""
        if self._log is not None:
            self._log.refresh()
        elif (self.path / LOG).is_dir():
            try:
                self._log = TableLog(self.path)
            except LakeFailed:
                if StreamTable.exists(self.path):
                    raise
        return self._log

    def _created(self) -> TableLog:
        properties = retention_properties(DEFAULT_RETENTION_HOURS)
        try:
            self._log = TableLog.create(self.path, Schema.from_arrow(SCHEMA), "marks", properties)
            self._log.make_durable()
        except LakeFailed:  # unless another process has just made it
            if not StreamTable.exists(self.path):
                raise
            self._log = TableLog(self.path)
        return self._log


def _misread(error: Exception) -> str:
    return f"a file whose marks cannot be read ({plain_error(error)[:200]})"


def _as_written(file: MarksFile) -> DataFile:
    return DataFile(file.name, file.size, file.marks, 0, 0)


def _files(log: TableLog) -> list[MarksFile]:
    """The files of the table."""
    actions = pa.table(log.delta.get_add_actions(flatten=True))
    return [
        MarksFile(
            row["path"],
            row["size_bytes"],
            row["num_records"],
            {
                name: Extremes(row[f"min.{name}"], row[f"max.{name}"])
                for name in SCHEMA.names
                if row.get(f"min.{name}") is not None and row.get(f"max.{name}") is not None
            },
        )
        for row in actions.to_pylist()
    ]


def _is_due(last: PositionMark | None, token: Token, at: float) -> bool:
    if last is None:
        return True
    # If the clock was set back, marks are added at once, not when it has caught up.
    return token > last.token and not 0 <= at - last.at < MIN_SPACING_S


def _time(mark: PositionMark) -> datetime:
    return _EPOCH + timedelta(microseconds=round(mark.at * 1e6))
