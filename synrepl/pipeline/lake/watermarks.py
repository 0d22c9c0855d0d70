"""Watermarks: the token that each stream had reached at recorded times.

Rows have no time of their own. Each mark says that a stream was on record, or landed, up to a token
at a time; rows between two marks of a stream arrived between their times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.dataframe import parquet_dataframe
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.table import DEFAULT_RETENTION_HOURS, retention_properties
from synrepl.pipeline.lake.table_log import LOG, lake_errors, remove_unused
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

_DDL = "stream string, token bigint, at timestamp"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Watermarks:
    """The marks of a lake; to add some, construct and use this within :meth:`.Lake.write_lock`."""

    def __init__(self, lake: Lake) -> None:
        self.path = lake.path / "marks"
        self._newest: dict[str, PositionMark] | None = None

    def record(self, stream: str, token: Token, at: float) -> bool:
        """Record the position of one stream, see :meth:`record_all`; True if a mark was added."""
        return bool(self.record_all({stream: token}, at))

    def record_all(self, tokens: Mapping[str, Token], at: float) -> int:
        """Record the positions of streams in one commit: of those that advanced and have no mark of the last minute.

        :param tokens: by stream, the linear position
        :param at: the time at which the positions were read, in seconds since the epoch
        :returns: the number of marks added
        :raises LakeFailed: the table could not be read or written
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

        :raises LakeFailed: the table could not be read or written
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
        """All marks, unordered, with the columns of :data:`SCHEMA`."""
        found = self._open()
        if found is None:
            return SCHEMA.empty_table()
        with lake_errors(self.path, "read"):
            return found.to_pyarrow_table().cast(SCHEMA)

    def frame(self, spark: SparkSession) -> DataFrame:
        """All marks (``stream``, ``token``, ``at``) as a data frame; use it within :meth:`.Lake.read_lock`."""
        found = self._open()
        return parquet_dataframe(spark, _DDL, [] if found is None else found.file_uris())

    def remove_unused(self, retention_hours: int) -> int:
        """Delete files that no longer belong to the table, and return their number.

        Call it within :meth:`.Lake.write_lock` and :meth:`.Lake.removal_lock`.

        :param retention_hours: see :meth:`.StreamTable.remove_unused`
        """
        found = self._open()
        return 0 if found is None else remove_unused(self.path, found, retention_hours)

    def _append(self, marks: Iterable[tuple[str, PositionMark]]) -> None:
        rows = [
            {"stream": stream, "token": mark.token, "at": _time(mark)} for stream, mark in marks
        ]
        if not rows:
            return
        with lake_errors(self.path, "written"):
            DeltaTable.create(
                str(self.path),
                Schema.from_arrow(SCHEMA),
                mode="ignore",
                name="marks",
                configuration=retention_properties(DEFAULT_RETENTION_HOURS),
            )
            delta = DeltaTable(str(self.path))
            write_deltalake(delta, pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
            if len(delta.file_uris()) > MAX_FILES:
                delta.optimize.compact()

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

    def _open(self) -> DeltaTable | None:
        if not (self.path / LOG).is_dir():
            return None
        with lake_errors(self.path, "read"):
            return DeltaTable(str(self.path))


def _is_due(last: PositionMark | None, token: Token, at: float) -> bool:
    if last is None:
        return True
    # If the clock was set back, marks are added at once, not when it has caught up.
    return token > last.token and not 0 <= at - last.at < MIN_SPACING_S


def _time(mark: PositionMark) -> datetime:
    return _EPOCH + timedelta(microseconds=round(mark.at * 1e6))
