"""A stream's Delta table: its columns, its position and its files.

Each commit contains the position: an application *transaction* of the Delta log per writer, whose
version is the token up to which that writer was landed. So rows and position change together, and a
process that dies in between leaves both unchanged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.transaction import RemoveAction

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.pipeline.lake.computed_columns import computed_columns
from synrepl.pipeline.lake.data_files import DataFile, file_epoch, verify_files
from synrepl.pipeline.lake.delta_format import (
    STATISTICS,
    add_action,
    column_of,
    columns_with_statistics,
    computed_field,
    field_of,
    files_of,
    lack_statistics,
)
from synrepl.pipeline.lake.file_statistics import completed
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.table_failovers import TableFailovers
from synrepl.pipeline.lake.table_log import (
    LakeConflict,
    LakeFailed,
    TableLog,
    lake_errors,
    remove_unused,
)
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import Column

#: Application IDs in the log: of the linear position, of a writer's position, and of rewrites.
_LINEAR = "synrepl/linear"
_WRITER = "synrepl/writer/"
_REWRITES = "synrepl/rewrites"

#: Of landings, and of erasures. An erasure begins with a commit that touches the applications of all
#: other changes, so those that began before it fail.
_LANDINGS = "synrepl/landings"
_ERASURES = "synrepl/erasures"

#: Table properties: the writers that have a position, the direction of the stream, the computed columns, and the failovers
#: of the database.
_WRITERS = "synrepl.writers"
_COUNTS_DOWN = "synrepl.counts_down"
_COMPUTED = "synrepl.computed"
_FAILOVERS = "synrepl.failovers"

#: How long files that were replaced are kept for readers and for time travel, in hours.
DEFAULT_RETENTION_HOURS = 6

#: The table property with this time, which other writers of Delta tables heed, too.
_RETENTION = "delta.deletedFileRetentionDuration"
_LOG_RETENTION = "delta.logRetentionDuration"
_HOURS = re.compile(r"interval (\d+) hours")

#: How often the beginning of an erasure is tried while others land.
_FENCE_ATTEMPTS = 20


class SchemaChanged(Refused):
    """stream {stream!r} has {change} in the database, which its table in the lake does not allow; land it into another lake"""


class LandedElsewhere(Refused):
    """the lake's table of stream {stream!r} is at {found}, not at {expected}: another process has landed it meanwhile; nothing was written"""


class ErasedMeanwhile(LakeConflict):
    """the lake's table {path} cannot be {what}, because another process has begun an erasure from it: {reason}; nothing was changed here, so run this again"""


class StreamTable:
    """The table in a folder, as of the construction of this object or the last :meth:`refresh`.

    :raises LakeFailed: it cannot be read
    """

    def __init__(self, path: LakePath, log: TableLog | None = None) -> None:
        self.path = path
        self._log = TableLog(path) if log is None else log

    @staticmethod
    def exists(path: LakePath) -> bool:
        """True if a folder has a table; a folder whose creation was interrupted has none."""
        # In a file system, asking delta-rs for a folder that does not exist makes it.
        if isinstance(path, Path) and not path.is_dir():
            return False
        with lake_errors(path, "read"):
            return DeltaTable.is_deltatable(str(path))

    @classmethod
    def opened(cls, path: LakePath) -> StreamTable | None:
        """The table in a folder; None if there is none. An object store is asked once for a table that exists.

        :raises LakeFailed: it cannot be read
        """
        if isinstance(path, Path) and not path.is_dir():
            return None
        try:
            return cls(path)
        except LakeFailed:
            if cls.exists(path):
                raise
            return None

    @classmethod
    def create(
        cls,
        path: LakePath,
        stream_schema: StreamSchema,
        writers: Iterable[str] = (),
        *,
        with_files: bool = False,
    ) -> StreamTable:
        """Create a table for a stream.

        All of the stream's own columns are nullable: erasing leaves nulls, and the stream may
        become nullable later. Computed columns are added.

        :param writers: names of writers that will have a position; others are added when they have one
        :param with_files: not before its first files, see :meth:`.TableLog.create`
        """
        stream_schema = replace(stream_schema, computed=computed_columns(stream_schema))
        fields = [
            *map(field_of, stream_schema.columns),
            *map(computed_field, stream_schema.computed),
        ]
        log = TableLog.create(
            path,
            Schema(fields),
            stream_schema.stream,
            {
                STATISTICS: columns_with_statistics(stream_schema),
                "delta.enableExpiredLogCleanup": "true",
                **retention_properties(DEFAULT_RETENTION_HOURS),
                _COUNTS_DOWN: str(stream_schema.counts_down).lower(),
                _COMPUTED: msgspec.json.encode(stream_schema.computed).decode(),
                _WRITERS: msgspec.json.encode(sorted(set(writers))).decode(),
            },
            with_files=with_files,
        )
        return cls(path, log)

    def refresh(self) -> None:
        """Load commits of other processes."""
        self._log.refresh()

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self.path.name

    @property
    def stream_schema(self) -> StreamSchema:
        """The columns of the stream, in order, and which are computed from them."""
        fields = self._log.schema.fields
        computed = self.computed
        columns = [column_of(field) for field in fields if field.name not in computed]
        down = self._log.properties.get(_COUNTS_DOWN) == "true"
        return StreamSchema(self.stream, down, tuple(columns[len(HEAD) :]), computed)

    @property
    def computed(self) -> tuple[str, ...]:
        """The names of the computed columns; none in tables of releases that had none."""
        return msgspec.json.decode(self._log.properties.get(_COMPUTED, "[]"), type=tuple[str, ...])

    def widen(self, stream_schema: StreamSchema) -> StreamTable:
        """Add the columns of ``stream_schema`` that the table lacks.

        :raises SchemaChanged: a column has another type, or is missing there
        """
        if not self._new_columns(stream_schema):
            self._widen_statistics()
            return self
        self.refresh()  # another process may have added them
        new = [field_of(column) for column in self._new_columns(stream_schema)]
        if new:
            with lake_errors(self.path, "widened"):
                self._log.delta.alter.add_columns(new)
            self.refresh()
        self._widen_statistics()
        return self

    def _widen_statistics(self) -> None:
        """Tell readers of which columns the log has statistics, and give them to all files.

        Older releases had them only of IDs, or left them out where a file has no number at all.
        """
        wanted = columns_with_statistics(self.stream_schema)
        columns = wanted.split(",")
        # First, all files get them. A file that another process replaces meanwhile does not come back.
        if lack_statistics(self._log.delta, columns) and (
            new := completed(self.path, self.files, columns)
        ):
            self.rewrite([], new, change=False)
        if self._log.properties.get(STATISTICS) != wanted:
            with lake_errors(self.path, "written"):
                self._log.delta.alter.set_table_properties({STATISTICS: wanted})
            self.refresh()

    def _new_columns(self, stream_schema: StreamSchema) -> list[Column]:
        known = {column.name: column for column in self.stream_schema.columns}
        wanted = {column.name: column for column in stream_schema.columns}
        for name, column in wanted.items():
            if name in known and known[name].type is not column.type:
                change = f"column {name!r} as {column.type} (the table has {known[name].type})"
                raise SchemaChanged(stream=stream_schema.stream, change=change)
        for name in known:
            if name not in wanted:
                raise SchemaChanged(
                    stream=stream_schema.stream, change=f"no column {name!r} any more"
                )
        return [column for name, column in wanted.items() if name not in known]

    @property
    def position(self) -> PositionVector:
        """The position up to which the stream has been landed."""
        writers = {name: self._log.app_version(_WRITER + name) for name in self._writers}
        known = {name: token for name, token in writers.items() if token is not None}
        return PositionVector(known, self._log.app_version(_LINEAR) or 0)

    @property
    def has_position(self) -> bool:
        """True once a position has been committed, even one at the very beginning."""
        return self._log.app_version(_LINEAR) is not None

    @property
    def failovers(self) -> TableFailovers:
        """The failovers of the database that the table has recorded."""
        return msgspec.json.decode(self._log.properties.get(_FAILOVERS, "{}"), type=TableFailovers)

    def record_failovers(self, failovers: TableFailovers) -> None:
        """Record failovers, before anything of the new server is landed."""
        encoded = msgspec.json.encode(failovers).decode()
        with lake_errors(self.path, "written"):
            self._log.delta.alter.set_table_properties(
                {_FAILOVERS: encoded}, raise_if_not_exists=False
            )
        self.refresh()

    @property
    def files(self) -> list[DataFile]:
        """The files of the table, ordered by stream ID."""
        actions = pa.table(self._log.delta.get_add_actions(flatten=True))
        files = files_of(actions, self.stream_schema) if actions.num_rows else []
        return sorted(files, key=lambda file: (file.low, file.name))

    @property
    def retention_hours(self) -> int:
        """How long files that were replaced are kept, in hours."""
        found = _HOURS.fullmatch(self._log.properties.get(_RETENTION, ""))
        return DEFAULT_RETENTION_HOURS if found is None else int(found[1])

    def set_retention(self, hours: int) -> None:
        """Keep files that are replaced for this time, in hours."""
        wanted = retention_properties(hours)
        if not wanted.items() <= self._log.properties.items():
            with lake_errors(self.path, "written"):
                self._log.delta.alter.set_table_properties(wanted, raise_if_not_exists=False)
            self.refresh()

    def path_of(self, file: DataFile) -> LakePath:
        """The path of a file."""
        return self.path / file.name

    @property
    def epoch(self) -> int:
        """The number of erasures that have begun in a lake that several processes change."""
        return self._log.app_version(_ERASURES) or 0

    def begin_erasure(self) -> None:
        """Let all changes fail that others have begun, and so may contain what is to be erased.

        :raises LakeConflict: another process has changed the table at the same time too often
        """
        for again in reversed(range(_FENCE_ATTEMPTS)):
            self.refresh()
            delta = self._log.delta
            apps = {name: (self._log.app_version(name) or 0) + 1
                    for name in (_LANDINGS, _REWRITES, _ERASURES)}  # fmt: skip
            try:
                self._log.commit(delta, [], apps, "begin erasure")
            except LakeConflict:
                if not again:
                    raise
            else:
                return

    def append(
        self,
        files: Sequence[DataFile],
        start: PositionVector,
        end: PositionVector,
        epoch: int | None = None,
        *,
        verified: bool = False,
    ) -> None:
        """Add files and move the position from ``start`` to ``end``, in one commit.

        :param epoch: the epoch when it was determined what to erase from the files; None if no other
            process can have erased meanwhile
        :param verified: :func:`.verify_files` was called for the files
        :raises ErasedMeanwhile: an erasure has begun since
        :raises LakeConflict: another process has changed the table at the same time
        :raises FileNotAsWritten: a file is not in the table's folder as it was written
        :raises LandedElsewhere: the table is not at ``start``
        """
        if not verified:
            verify_files(self.path, files)
        self.refresh()
        self._register_writers(end.writers)
        apps = self._landing(start, end, epoch)
        if not self._log.add_files(files, apps, "land"):
            # It may be that somebody else has landed. delta-rs detects commits after what it has loaded.
            delta = self._log.delta
            apps = self._landing(start, end, epoch)
            self._log.commit(delta, [add_action(file, True) for file in files], apps, "land")

    def make_durable(self) -> None:
        """Make sure that what has been committed survives a loss of power, before its facts may be trimmed.

        :raises LakeFailed:
        """
        self._log.make_durable()

    def _landing(
        self, start: PositionVector, end: PositionVector, epoch: int | None
    ) -> Mapping[str, Token]:
        """What a landing sets in the table as it is known to be."""
        if self.has_position and self.position != start:
            raise LandedElsewhere(stream=self.stream, found=self.position, expected=start)
        if epoch is not None and self.epoch != epoch:
            reason = f"the files are of epoch {epoch}, and this is epoch {self.epoch}"
            raise ErasedMeanwhile(path=self.path, what="written", reason=reason)
        return {
            _LANDINGS: (self._log.app_version(_LANDINGS) or 0) + 1,
            _LINEAR: end.linear,
            **{_WRITER + name: end[name] for name in end.writers},
        }

    def rewrite(self, old: Sequence[DataFile], new: Sequence[DataFile], *, change: bool) -> None:
        """Replace files by others, in one commit.

        :param change: the rows differ, and not only their arrangement
        :raises FileNotAsWritten: a new file is not in the table's folder as it was written
        :raises LakeConflict: another process has changed the table at the same time
        """
        verify_files(self.path, new)
        delta = self._log.delta
        # After an own commit it has those of others, which may have replaced the same files.
        there = {*pa.table(delta.get_add_actions()).column("path").to_pylist()} if old else set()
        if gone := [file.name for file in old if file.name not in there]:
            reason = f"it no longer has {len(gone)} of the files to replace, such as {gone[0]}"
            raise LakeConflict(path=self.path, what="written", reason=reason)
        number = (self._log.app_version(_REWRITES) or 0) + 1
        now = int(time.time() * 1000)
        removed = [
            RemoveAction(file.name, change, now, size=file.size, partition_values={})
            for file in old
        ]
        # Two rewrites that begin at one version have the same number, so one of them fails.
        actions = [*(add_action(file, change) for file in new), *removed]
        self._log.commit(delta, actions, {_REWRITES: number}, "rewrite")

    def remove_unused(self, retention_hours: int) -> int:
        """Delete files that do not belong to the table, and return their number.

        Call it within :meth:`.Lake.write_lock` and :meth:`.Lake.removal_lock`.

        :param retention_hours: keep those that were replaced, or written in vain, within this time;
            with 0, whoever reads an older version of the table fails
        """
        self.refresh()
        self.make_durable()  # without the last commit, the table would need what is deleted
        return remove_unused(self.path, self._log.delta, retention_hours)

    def remove_before_epoch(self) -> int:
        """Delete all files of earlier epochs that do not belong to the table, and return their number.

        Those of this epoch contain nothing to erase, and other processes may be about to commit some.
        """
        self.refresh()
        self.make_durable()
        epoch = self.epoch
        with lake_errors(self.path, "cleared"):
            there = {each.name for each in self.path.iterdir()}
            unused = there.intersection(
                self._log.delta.vacuum(
                    retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True
                )
            )
            gone = [name for name in unused if file_epoch(name) < epoch]
            for name in gone:
                (self.path / name).unlink()
        return len(gone)

    @property
    def _writers(self) -> list[str]:
        return msgspec.json.decode(self._log.properties.get(_WRITERS, "[]"), type=list[str])

    def _register_writers(self, writers: Iterable[str]) -> None:
        known = set(self._writers)
        if not known.issuperset(writers):
            names = msgspec.json.encode(sorted(known.union(writers))).decode()
            with lake_errors(self.path, "written"):
                self._log.delta.alter.set_table_properties(
                    {_WRITERS: names}, raise_if_not_exists=False
                )
            self.refresh()


def retention_properties(hours: int) -> dict[str, str]:
    """The table properties that keep replaced files for this time, in hours, and their versions in the log."""
    # A day more, as a version needs the checkpoint before it. Not the default of 30 days: there may
    # be a commit per second.
    return {_RETENTION: f"interval {hours} hours", _LOG_RETENTION: f"interval {hours + 24} hours"}
