"""Compares a lake with its source database, up to the lake's position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.pipeline.lake.check.here import equal_rows
from synrepl.pipeline.lake.check.report import (
    CHANGED,
    CheckReport,
    Difference,
    Example,
    StreamReport,
)
from synrepl.pipeline.lake.check.revised_events import NO_REVISIONS, Revisions
from synrepl.pipeline.lake.check.rows import changed_columns, find_differences
from synrepl.pipeline.lake.check.sums import ComparedRows, RangeSums, compare_sums
from synrepl.pipeline.lake.data_files import DataFile, DataFileDamaged, unlike
from synrepl.pipeline.lake.dataframe import table_dataframe
from synrepl.pipeline.lake.erase.erasure_record import read_erasure_record
from synrepl.pipeline.lake.erase.redacted_events import AppliedRedactions
from synrepl.pipeline.lake.erase.redaction_index import redaction_folder
from synrepl.pipeline.lake.failover.lost_rows import LostRows
from synrepl.pipeline.lake.fill import fill_erased_cells
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.on_demand import ROWS_HERE, SessionOnDemand, on_demand
from synrepl.pipeline.lake.source_rows import Mask, no_mask, restrict_chunks, source_rows
from synrepl.pipeline.lake.storage import ObjectUnreadable, plain_error
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_failovers import (
    LossWindow,
    TableFailovers,
    update_failovers,
)
from synrepl.pipeline.lake.token_ranges import TokenRanges, merge_adjacent
from synrepl.pipeline.source.database.source_database import NoSuchStream, SourceDatabase
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.whole_events import BASES, has_whole_events
from synrepl.pipeline.source.errors import original_error
from synrepl.pipeline.source.plan.chunks import ScanChunk, plan_chunks
from synrepl.pipeline.source.writer_ranges import WriterRanges, cap_position
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SafeBound
from synrepl.storage.foreign.release import UnknownSchema
from synrepl.storage.store import Trimmed

#: Number of rows in a range, which is compared row by row if its checksums differ.
RANGE_ROWS = 50_000

#: Maximum number of differing rows listed per stream in a report.
EXAMPLES = 10

#: Number of attempts for a stream that is trimmed while it is read.
_TRIMS = 5

#: Called with the report of each stream.
Progress = Callable[[StreamReport], object]


@dataclass(frozen=True, slots=True)
class Extent:
    """The streams and tokens to check or to replay.

    :ivar streams: names of streams; None for all of the lake
    :ivar after: only tokens above this
    :ivar upto: and at or below this; None for the lake's position
    :ivar range_rows: approximate number of rows in a range
    :ivar examples: maximum number of differing rows listed per stream
    :ivar rows_here: streams with at most this many rows in the lake are compared in this process
    """

    streams: Sequence[str] | None = None
    after: Token = 0
    upto: Token | None = None
    range_rows: int = RANGE_ROWS
    examples: int = EXAMPLES
    rows_here: int = ROWS_HERE


EVERYTHING = Extent()


def check(
    spark: SparkSession | SessionOnDemand,
    lake: Lake,
    source: SourceDatabase,
    dsn: str,
    extent: Extent = EVERYTHING,
    *,
    mask: Mask = no_mask,
    copy: bool = False,
    progress: Progress = lambda report: None,
) -> CheckReport:
    """Compare a lake with its source, range by range, and where they differ row by row.

    A stream with nothing to compare counts as equal only if both sides were read and have no rows: a
    lake that was not landed proves nothing.

    Each side is read once, and ranges that differ once more; the driver holds a few sums per range.
    Values are equal if all their bytes are: NULL is not ``''``, 0.0 is not -0.0, and JSON is compared
    as text. If the source is lossy (:attr:`.SourceDatabase.is_lossy`), rows that only the lake has
    are counted as gone, and row numbers are not compared. Whole events that the source has purged, judged
    again or redacted since are counted, too (:mod:`.revised_events`). Rows that only a failover of the database
    can have lost are reported separately from differences.

    :param spark: called for a session only if a stream differs, or has many rows
    :param dsn: the DSN of the source that tasks connect to
    :param mask: applied to the source's rows, as cells are erased in the lake
    :param copy: the source is a copy made by a replay, in which erased cells are empty where they
        cannot be NULL
    :param progress: called after each stream
    :raises LakeOfAnother: :raises NotInTheLake: :raises LakeFailed:
    :raises ReadingAway: :raises ReadFailed: :raises Trimmed:
    """
    if not copy:
        lake.require_server(source.server)
    done = []
    with lake.read_lock():
        tables = [lake.table(name) for name in extent.streams or lake.streams]
        for table in tables:
            if copy and has_whole_events(table.stream_schema):
                if extent.streams:
                    why = f"a copy has facts, and no rooms; check stream {BASES[table.stream]!r}"
                    done.append(StreamReport(table.stream, not_compared=why))
                    progress(done[-1])
                continue
            quarantined = lake.quarantine(table.stream)
            session = on_demand(spark)
            checking = _StreamCheck(session, lake, table, source, dsn, extent, mask, copy)
            done.append(replace(checking.report(), quarantined=_rows(quarantined)))
            progress(done[-1])
    absent = sorted(set(source.streams) - set(lake.streams))
    return CheckReport(done, absent, dict(source.left_out))


class _Differences(NamedTuple):
    """The differences found row by row; see :class:`.StreamReport`."""

    differences: Sequence[Difference] = ()
    examples: Sequence[Example] = ()
    lost: Sequence[LostRows] = ()
    gone: int = 0
    revised: int = 0


class _StreamCheck:
    """The check of one stream."""

    def __init__(
        self,
        spark: SessionOnDemand,
        lake: Lake,
        table: StreamTable,
        source: SourceDatabase,
        dsn: str,
        extent: Extent,
        mask: Mask,
        copy: bool,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._table = table
        self._source = source
        self._dsn = dsn
        self._extent = extent
        self._mask = mask
        self._copy = copy
        self._stream_schema = table.stream_schema
        self._files = table.files

    def report(self) -> StreamReport:
        """Check the stream; start again if it is trimmed meanwhile."""
        stream = self._table.stream
        try:
            there = self._source.stream_schema(stream)
        except (NoSuchStream, UnknownSchema) as error:
            return StreamReport(stream, not_compared=str(error))
        wrong = _unlike(self._stream_schema, there)
        if wrong:
            return StreamReport(stream, not_compared=wrong)
        if damaged := first_damage(self._table, self._files):
            return StreamReport(stream, not_compared=damaged)
        known = {column.name for column in self._stream_schema.columns}
        new = tuple(column.name for column in there.cells if column.name not in known)
        again = _TRIMS
        while True:
            at = self._source.observe([stream])[stream]
            failovers = self._failovers()
            after = max(at.trimmed, self._extent.after)
            if why := self._nothing_above(after, at):
                upto = self._end.highest
                return StreamReport(stream, after, upto, not_in_lake=new, not_compared=why)
            try:
                found = self._from(after, failovers)
                more = at.last if at.last > max(self._table.position.highest, after) else 0
                return replace(found, goes_on_to=more, not_in_lake=new)
            except DataFileDamaged as error:
                return StreamReport(stream, after, self._end.highest, not_compared=str(error))
            except (PySparkException, Trimmed) as error:
                ours = error if isinstance(error, Trimmed) else original_error(error)
                again -= 1
                if not (isinstance(ours, Trimmed) and again):
                    raise ours or error from None

    @property
    def _end(self) -> PositionVector:
        """The position up to which the stream is checked."""
        end, upto = self._table.position, self._extent.upto
        return end if upto is None else cap_position(PositionVector(), end, upto)

    def _nothing_above(self, after: Token, at: SafeBound) -> str:
        """Why a comparison above a token would prove nothing.

        "" if it proves something, if both sides have no rows, or if the database has trimmed just what the
        lake has: then neither side may have rows above.
        """
        end, landed = self._end, self._table.position
        if end.highest > after:
            return ""
        if self._extent.after or end != landed:
            return f"the lake has it up to {landed}, and not what was asked for"
        if at.trimmed > end.highest:
            return f"the database has trimmed it up to {at.trimmed}, and the lake has it up to {landed}"
        if at.trimmed and self._files:
            return ""  # neither side may have anything above it
        if self._goes_on(end):  # tokens without rows prove nothing: a failover skips a billion
            return f"the lake has none of it, and the database goes up to {at.last}: land it first"
        return ""

    def _goes_on(self, end: PositionVector) -> bool:
        """Whether the source has a row above a position, regardless of its sequence."""
        beyond = WriterRanges.between(end, PositionVector({}, MAX_TOKEN))
        stream = self._table.stream
        return self._source.count_rows({stream: beyond}, 1)[stream].rows > 0

    def _from(self, after: Token, failovers: TableFailovers) -> StreamReport:
        start, end = PositionVector({}, after), self._end
        whole = Range(after, max(end.highest, after + 1))
        names = [column.name for column in self._stream_schema.columns]
        stream = self._table.stream
        parts = list(plan_chunks(self._source, {stream: start}, {stream: end}, {stream: names}))
        down = self._stream_schema.counts_down
        ranges = TokenRanges.of_files(
            self._files, down, whole, self._extent.range_rows, failovers.skipped_ranges
        )
        equal = self._equal_here(parts, after)
        if equal is not None:
            return StreamReport(stream, after, end.highest, len(ranges), equal, equal)
        sums = compare_sums(self._sides(parts, ranges, range(len(ranges))), ranges)
        unequal = [number for number, (source, lake) in sums.items() if source != lake]
        looked = self._find_differences(parts, ranges, sums, unequal, failovers.lost)
        return StreamReport(
            stream,
            after,
            end.highest,
            len(ranges),
            sum(source.rows for source, _ in sums.values()),
            sum(lake.rows for _, lake in sums.values()),
            looked.gone,
            looked.revised,
            differences=tuple(looked.differences),
            examples=tuple(looked.examples),
            lost=tuple(looked.lost),
        )

    def _equal_here(self, parts: Sequence[ScanChunk], after: Token) -> int | None:
        """The number of rows if both sides are found equal in this process; otherwise None."""
        if self._copy or sum(file.rows for file in self._files) > self._extent.rows_here:
            return None
        upto = None if self._extent.upto is None else self._end.highest
        return equal_rows(
            self._dsn, parts, self._table, self._files, after, upto, self._mask,
            numbered=not self._source.is_lossy,
        )  # fmt: skip

    def _find_differences(
        self,
        parts: Sequence[ScanChunk],
        ranges: TokenRanges,
        sums: Mapping[int, tuple[RangeSums, RangeSums]],
        unequal: Sequence[int],
        lost: Sequence[LossWindow],
    ) -> _Differences:
        if not unequal:
            return _Differences()
        sides = self._sides(parts, ranges, unequal)
        looked = find_differences(
            sides, ranges, unequal, self._extent.examples, lost, self._revisions()
        )
        found, gone = [], looked.purged
        for number, count in sorted(looked.counts.items()):
            if self._source.is_lossy:
                gone += count.only_in_lake
                count = count._replace(only_in_lake=0)
            if any(count):
                source, lake = sums[number]
                found.append(Difference(*ranges[number], source.rows, lake.rows, *count))
        return _Differences(
            found,
            self._explained(parts, ranges, looked.examples),
            looked.lost,
            gone,
            looked.revised,
        )

    def _revisions(self) -> Revisions:
        """What the database has changed of whole events."""
        if not has_whole_events(self._stream_schema):
            return NO_REVISIONS
        stream = self._table.stream
        since = read_erasure_record(self._lake).position(stream)
        ever = PositionVector({}, MAX_TOKEN)
        collect = AppliedRedactions.collected_in(redaction_folder(self._lake))
        return Revisions(
            self._source.redacted_events(stream, since, ever, collect),
            partial(self._source.explained_rows, stream),
        )

    def _failovers(self) -> TableFailovers:
        """The failovers that the table has recorded, and those since then.

        A copy has everything that the lake has, and its own failovers are of no importance.

        :raises OlderServer:
        """
        table = self._table
        if self._copy:
            return msgspec.structs.replace(table.failovers, lost=())
        return update_failovers(table.stream, table.failovers, table.position, self._source)

    def _explained(
        self, parts: Sequence[ScanChunk], ranges: TokenRanges, examples: list[Example]
    ) -> list[Example]:
        """Add the columns that differ to the examples of changed rows."""
        ids = {each.stream_id for each in examples if each.what == CHANGED}
        if not ids:
            return examples
        spans = merge_adjacent(Range(abs(each) - 1, abs(each)) for each in sorted(ids, key=abs))
        sides = self._sides_of(restrict_chunks(parts, spans), self._lake_rows(spans))
        wanted = f.col("stream_id").isin(list(ids))
        few = sides._replace(source=sides.source.where(wanted), lake=sides.lake.where(wanted))
        columns = changed_columns(few)
        # Without comparable row numbers, only those of a fact with one row agree.
        return [
            replace(each, columns=columns.get((each.stream_id, each.row_no or 0), ()))
            if each.what == CHANGED
            else each
            for each in examples
        ]

    def _sides(
        self, parts: Sequence[ScanChunk], ranges: TokenRanges, numbers: Iterable[int]
    ) -> ComparedRows:
        spans = merge_adjacent(ranges[number] for number in numbers)
        last = ranges[len(ranges) - 1].upto
        beyond = self._extent.upto is None
        # The last range includes rows above the lake's position, which it should not have.
        open_ = [
            Range(span.after, 2**63 - 1) if beyond and span.upto == last else span for span in spans
        ]
        return self._sides_of(restrict_chunks(parts, spans), self._lake_rows(open_))

    def _sides_of(self, parts: Sequence[ScanChunk], lake: DataFrame) -> ComparedRows:
        source = source_rows(self._spark(), self._dsn, parts, self._stream_schema, self._mask)
        if self._copy:  # also where the mask leaves NULL
            there = self._source.stream_schema(self._table.stream)
            source, lake = fill_erased_cells(source, there), fill_erased_cells(lake, there)
        return ComparedRows(source, lake, self._stream_schema, numbered=not self._source.is_lossy)

    def _lake_rows(self, spans: Sequence[Range]) -> DataFrame:
        """The lake's rows in some ranges, and perhaps more rows of the same files."""
        down = self._stream_schema.counts_down
        files = [file for file in self._files if any(_meets(file, span, down) for span in spans)]
        rows = table_dataframe(self._spark(), self._table, files)
        token = -f.col("stream_id") if down else f.col("stream_id")
        return rows.where((token > spans[0].after) & (token <= spans[-1].upto))


def _rows(table: StreamTable | None) -> int:
    return 0 if table is None else sum(file.rows for file in table.files)


def _meets(file: DataFile, span: Range, counts_down: bool) -> bool:
    low, high = (-file.high, -file.low) if counts_down else (file.low, file.high)
    return low <= span.upto and high > span.after


def first_damage(table: StreamTable, files: Iterable[DataFile]) -> str:
    """Which of a table's files is lost, damaged or out of reach, and what it held; "" if none is."""
    for file in files:
        try:
            found = unlike(table.path_of(file), file)
        except ObjectUnreadable as error:
            return f"its file {file.name} cannot be read ({plain_error(error)[:200]})"
        if found:
            first, last = sorted((abs(file.low), abs(file.high)))
            return (
                f"of its file {file.name} with {file.rows:,} rows, tokens {first} to {last},"
                f" there is {found}; 'synrepl lake repair' makes it again"
            )
    return ""


def _unlike(lake: StreamSchema, source: StreamSchema) -> str:
    """Why rows of two schemas cannot be compared; "" if they can."""
    types = {column.name: column.type for column in source.columns}
    for column in lake.columns:
        found = types.get(column.name)
        if found is None:
            return f"the source has no column {column.name!r} any more"
        if found is not column.type:
            return f"column {column.name!r} is {found} at the source, and {column.type} in the lake"
    if lake.counts_down != source.counts_down:
        return "it counts in the other direction at the source"
    return ""
