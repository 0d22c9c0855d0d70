"""Replays a lake into another database, with the same IDs, row numbers and writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.core.errors import Refused
from synrepl.core.tokens import Range, Token
from synrepl.pipeline.datasource import register
from synrepl.pipeline.lake.check.check import EVERYTHING, Extent, check
from synrepl.pipeline.lake.dataframe import table_dataframe
from synrepl.pipeline.lake.fill import count_cells_to_fill, fill_erased_cells
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.replay.copy_database import (
    INSTANCE,
    finish_copy,
    highest_token,
    prepare_copy,
)
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.token_ranges import TokenRanges
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.whole_events import BASES, has_whole_events
from synrepl.pipeline.source.errors import original_error

#: Approximate number of rows per transaction.
BATCH_ROWS = 500_000

#: Called with the stream, the number of its rows written so far, and the number to write.
Progress = Callable[[str, int, int], object]


class NotTheSame(Refused):
    """stream {stream!r} of the database differs from the lake below token {upto}: {first}; nothing was written of it: replay into an empty database, or from above that token"""


class RoomsNotReplayed(Refused):
    """stream {stream!r} has whole events, and a copy gets facts and no rooms; replay stream {base!r}, which has the facts"""


class BeyondTheLake(Refused):
    """the lake has all of stream {stream!r} up to {landed} only, and {upto} was asked for; ask for less, or land more first"""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of replaying one stream.

    :ivar after: the database has everything above this token now
    :ivar upto: and at or below this one
    :ivar rows: the number of rows written
    :ivar present: the number of rows that the database had before
    :ivar filled: the number of erased cells that got an empty value, as the database accepts no NULL
    :ivar remaining: the number of rows of the lake above ``upto``, between which facts of other
        writers may still be landed; 0 if the replay was given an end
    """

    stream: str
    after: Token
    upto: Token
    rows: int
    present: int
    filled: int = 0
    remaining: int = 0


def replay(
    spark: SparkSession,
    lake: Lake,
    dsn: str,
    extent: Extent = EVERYTHING,
    *,
    batch_rows: int = BATCH_ROWS,
    progress: Progress = lambda stream, rows, of: None,
) -> list[ReplayReport]:
    """Write the rows of streams in the order of their tokens, one transaction per batch.

    Schema and tables are created if the database lacks them. A stream may only have rows below the
    start of the replay. If an earlier replay was killed, the rows it wrote are compared with the
    lake, and the rest is written. Followers of the copy get the facts like any others.

    By default it ends at the lake's linear position: beyond it, facts of some writers may not have
    landed yet, and could not be inserted later.

    Tokens up to the end are never allocated in the copy, even where the lake has no row, and the end
    is recorded as the copy's linear position. So a token of a follower of the original server is
    valid in the copy, unless it is beyond the end.

    Streams that share a sequence can be replayed in any order, before a process writes to them.
    Cells that were erased in the lake are empty in the copy where they cannot be NULL.

    The copy is another server, so a lake of the original one cannot be continued from it.

    :param extent: the streams to replay, and the tokens of each
    :param dsn: the database to write to
    :param batch_rows: approximate number of rows per transaction
    :returns: a report per stream, in the order of the replay
    :raises NotTheSame: :raises BeyondTheLake: :raises NotInTheLake: :raises RoomsNotReplayed:
    :raises NotACopy: :raises SchemaBehind: :raises PositionsTaken: :raises StreamBusy:
    :raises NotConfirmed: the copy's server was promoted or restored, and is not confirmed yet
    :raises RowsRefused: the database does not accept some rows
    """
    with lake.read_lock():
        spans = replay_ranges(lake, extent)
        tables = [lake.table(name) for name in spans]
        stream_schemas = prepare_copy(spark, dsn, tables)
        register(spark)
        return [
            _StreamReplay(
                spark,
                lake,
                table,
                dsn,
                stream_schemas[table.stream],
                spans[table.stream],
                progress,
                has_end=extent.upto is not None,
            ).run(batch_rows)
            for table in tables
        ]


def replay_ranges(lake: Lake, extent: Extent) -> dict[str, Range]:
    """The tokens to replay, by stream, in the order of the replay; none of streams of whole events.

    :raises NotInTheLake: :raises BeyondTheLake: :raises RoomsNotReplayed:
    """
    tables = [lake.table(name) for name in extent.streams or lake.streams]
    whole = [table.stream for table in tables if has_whole_events(table.stream_schema)]
    if whole and extent.streams:
        raise RoomsNotReplayed(stream=whole[0], base=BASES[whole[0]])
    tables = [table for table in tables if table.stream not in whole]
    return {table.stream: _span(table, extent) for table in tables}


def _span(table: StreamTable, extent: Extent) -> Range:
    position = table.position
    upto = position.linear if extent.upto is None else extent.upto
    if upto > position.highest:
        raise BeyondTheLake(stream=table.stream, landed=position.highest, upto=upto)
    return Range(extent.after, max(extent.after, upto))


class _StreamReplay:
    """The replay of one stream."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        table: StreamTable,
        dsn: str,
        target: StreamSchema,
        span: Range,
        progress: Progress,
        *,
        has_end: bool,
    ) -> None:
        self._has_end = has_end
        self._spark = spark
        self._lake = lake
        self._table = table
        self._dsn = dsn
        self._target = target
        self._span = span
        self._progress = progress
        self._files = table.files

    def run(self, batch_rows: int) -> ReplayReport:
        stream, (after, upto) = self._table.stream, self._span
        reached = min(max(after, highest_token(self._dsn, self._table)), upto)
        there = self._compared(Range(after, reached))
        rest = Range(reached, upto)
        total = self._rows(rest).count()
        written = cells = 0
        if total:
            down = self._table.stream_schema.counts_down
            gaps = self._table.failovers.skipped_ranges
            batches = TokenRanges.of_files(self._files, down, rest, batch_rows, gaps)
            for number in range(len(batches)):
                more, more_cells = self._write(batches[number])
                written += more
                cells += more_cells
                self._progress(stream, written, total)
        if not self._span.empty:
            finish_copy(self._dsn, stream, upto)
        return ReplayReport(stream, after, upto, written, there, cells, self._beyond())

    def _beyond(self) -> int:
        """The number of rows that are not replayed, as they are above the lake's linear position."""
        beyond = Range(self._span.upto, self._table.position.highest)
        if self._has_end or beyond.empty:
            return 0
        return self._rows(beyond).count()

    def _compared(self, span: Range) -> int:
        """The number of rows that the database has already, after comparing them with the lake."""
        if span.empty:
            return 0
        stream = self._table.stream
        source = open_source_database(self._dsn, INSTANCE)
        try:
            extent = Extent([stream], span.after, span.upto, examples=1)
            found = check(self._spark, self._lake, source, self._dsn, extent, copy=True)
        finally:
            source.close()
        if not found.equal:
            raise NotTheSame(stream=stream, upto=span.upto, first=found.problems[0])
        return found.streams[0].lake_rows

    def _write(self, span: Range) -> tuple[int, int]:
        """Write a batch; returns its number of rows, and of cells filled."""
        rows = self._rows(span)
        count, cells = rows.agg(
            f.count(f.lit(1)), count_cells_to_fill(rows, self._target)
        ).collect()[0]
        if count:
            try:
                self._save(fill_erased_cells(rows, self._target))
            except PySparkException as error:
                raise original_error(error) or error from None
        return count, cells

    def _save(self, rows: DataFrame) -> None:
        writer = rows.write.format("synrepl").mode("append")
        # The caller decides whether the DSN may be unencrypted.
        writer.options(
            database=self._dsn, insecure="true", stream=self._table.stream, positions="preserve"
        ).save()

    def _rows(self, span: Range) -> DataFrame:
        down = self._table.stream_schema.counts_down
        low, high = (-span.upto, -span.after - 1) if down else (span.after + 1, span.upto)
        files = [each for each in self._files if each.low <= high and each.high >= low]
        columns = [f.col(f"`{each.name}`") for each in self._table.stream_schema.columns]
        rows = table_dataframe(self._spark, self._table, files).select(*columns)
        return rows.where(f.col("stream_id").between(low, high))
