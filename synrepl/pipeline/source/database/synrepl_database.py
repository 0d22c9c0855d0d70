"""Streams of synrepl's own tables. Their columns are read from the tables, so no configuration is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from synrepl.core.tokens import Range
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.bounds import StreamBounds
from synrepl.pipeline.source.database.identity import DatabaseIdentity, identify, log_position
from synrepl.pipeline.source.database.packing import (
    ColumnStatistics,
    PackedScan,
    packed,
    rows_per_group,
)
from synrepl.pipeline.source.database.source_database import RowCount, no_such_stream
from synrepl.pipeline.source.database.sql import (
    HIGH,
    LOW,
    Scan,
    counted_rows,
    identifier,
    ids,
    in_order,
    in_ranges,
    literal,
    planned_rows,
    readable,
    selected,
)
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.storage import incarnations, writers
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.erased import erased_subjects
from synrepl.storage.foreign.bounds import SafeBound
from synrepl.storage.position_marks import PositionMark
from synrepl.storage.store import Observation, OlderServer
from synrepl.storage.tables import table_name
from synrepl.streams.columns import Column, ColumnType
from synrepl.streams.definition import Stream

_TYPES = {word.sql: word for word in ColumnType}

_COLUMNS = """
    SELECT s.stream, s.counts_down, s.sequence, a.attname, format_type(a.atttypid, a.atttypmod),
           NOT a.attnotnull, w.avg_width, w.null_frac, w.n_distinct
    FROM synrepl._streams s
    JOIN pg_attribute a ON a.attrelid = format('synrepl.%I', s.stream)::regclass
    LEFT JOIN pg_stats w
        ON w.schemaname = 'synrepl' AND w.tablename = s.stream AND w.attname = a.attname
    WHERE a.attnum > 0 AND NOT a.attisdropped
    ORDER BY s.stream, a.attnum
"""

_MARKS = """
    SELECT stream, extract(epoch FROM at)::float8, token FROM synrepl._stream_marks
    ORDER BY at, token
"""


class SynreplDatabase:
    """Implements :class:`.SourceDatabase` over synrepl's own tables."""

    is_lossy = False

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database
        self._bounds: dict[str, StreamBounds] = {}
        self.incarnation = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the streams and their columns again."""
        self._identity, self._log, self._streams, self._stream_schemas, self._statistics = (
            self._database.run("read the streams", _read, read_only=True)
        )
        self.server = str(self._identity)

    @property
    def streams(self) -> Sequence[str]:
        """The names of all streams."""
        return sorted(self._stream_schemas)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Empty: all of its tables can be read."""
        return {}

    def stream_schema(self, stream: str) -> StreamSchema:
        """The columns of a stream, from its table."""
        try:
            return self._stream_schemas[stream]
        except KeyError:
            raise no_such_stream(stream, self.streams) from None

    def observe(self, streams: Sequence[str]) -> Mapping[str, SafeBound]:
        """How far each stream may be read. Reads the sequences first, and then who holds tokens."""
        wanted = [self._streams[self.stream_schema(stream).stream] for stream in streams]

        def work(txn: Transaction) -> tuple[bool, int, Mapping[str, Observation], str]:
            standby = txn.execute("SELECT pg_is_in_recovery()").fetchone()[0]
            incarnation = incarnations.read(txn, self._identity.system)
            return not standby, incarnation, writers.observe(txn, wanted), log_position(txn)

        # Not in one snapshot: the order of the statements is the proof.
        locks, incarnation, seen, self._log = self._database.run(
            "observe", work, read_only=True, isolation=Isolation.READ_COMMITTED
        )
        if incarnation < self.incarnation:
            raise OlderServer(found=incarnation, newest=self.incarnation)
        if incarnation > self.incarnation:
            # Those who held tokens on the old server are gone, and new holders may have their identities.
            self._bounds.clear()
            self.incarnation = incarnation
        return {
            name: self._bounds.setdefault(name, StreamBounds()).update(each, locks)
            for name, each in seen.items()
        }

    def survived_since(self, incarnation: int) -> Mapping[str, PositionVector]:
        """By stream, the position up to which everything survived the failovers since an incarnation."""
        losses = self._database.run(
            "read what failovers have lost",
            lambda txn: incarnations.lost_since(txn, incarnation),
            read_only=True,
        )
        found = {stream: losses.kept(stream) for stream in self.streams}
        return {stream: kept for stream, kept in found.items() if kept is not None}

    def skipped_ranges(self) -> Mapping[str, Sequence[Range]]:
        """By stream, the ranges of tokens that failovers skipped."""
        return self._database.run("read the gaps", incarnations.gaps, read_only=True)

    def scan(
        self,
        stream: str,
        ranges: WriterRanges,
        columns: Sequence[str],
        condition: str = "",
        ordered: bool = True,
    ) -> Scan:
        """A statement that selects rows in the order of their tokens, or else in any order."""
        wanted = selected(self.stream_schema(stream), columns)
        return self._scan(stream, ranges, wanted, condition, ordered)

    def packed_scan(
        self, stream: str, ranges: WriterRanges, columns: Sequence[str], scan: Scan, rows: int
    ) -> PackedScan | None:
        """A statement that selects the rows of a scan in groups; None if it would not be faster."""
        if scan.counts_down:
            return None  # groups would come in the wrong order
        by_name = {column.name: column for column in self.stream_schema(stream).columns}
        wanted = [by_name[name] for name in columns]
        known = self._statistics.get(stream, {})
        tokens = rows_per_group(wanted, known, ranges.span, rows)
        return packed(scan, wanted, known, tokens) if tokens else None

    def raw_scan(self, stream: str, ranges: WriterRanges) -> Scan:
        """A statement that selects all rows as text."""
        cells = ", ".join(
            f"{readable(f'CAST({name} AS text)')} AS {name}"
            for name in (identifier(column.name) for column in self.stream_schema(stream).cells)
        )
        whole = f"(SELECT CAST(row_to_json(cells) AS text) FROM (SELECT {cells}) AS cells)"
        head = selected(self.stream_schema(stream), [column.name for column in HEAD])
        return self._scan(stream, ranges, f"{head}, {whole} AS cells")

    def _scan(
        self,
        stream: str,
        ranges: WriterRanges,
        wanted: str,
        condition: str = "",
        ordered: bool = True,
    ) -> Scan:
        stream_schema = self.stream_schema(stream)
        where = in_ranges(stream_schema, ranges, (LOW, HIGH)) + (
            f" AND ({condition})" if condition else ""
        )
        table = table_name(self._streams[stream])
        return Scan(
            f"SELECT {wanted} FROM {table} AS rows WHERE {where}"
            + (f" {in_order(stream_schema)}" if ordered else ""),
            stream_schema.counts_down,
        )

    def estimate_rows(self, stream: str, ranges: WriterRanges) -> int:
        """The number of rows that the planner of Postgres expects; one per token without statistics."""
        stream_schema = self.stream_schema(stream)
        table = table_name(self._streams[stream])
        where = in_ranges(stream_schema, ranges, ids(ranges.span, stream_schema.counts_down))

        def work(txn: Transaction) -> int:
            txn.execute(f"SELECT reltuples < 0 FROM pg_class WHERE oid = '{table}'::regclass")
            if txn.fetchone()[0]:
                return ranges.span.upto - ranges.span.after
            return planned_rows(txn, f"SELECT 1 FROM {table} WHERE {where}")

        return self._database.run("estimate", work, read_only=True)

    def occupied_range(self, stream: str, span: Range) -> Range:
        """The tokens of a range between the first and the last that have rows; empty without any."""
        down = self.stream_schema(stream).counts_down
        statement = (
            f"SELECT min(stream_id), max(stream_id) FROM {table_name(self._streams[stream])}"
            " WHERE stream_id BETWEEN {} AND {}".format(*ids(span, down))
        )
        low, high = self._database.run(
            "look for rows", lambda txn: txn.execute(statement).fetchone(), read_only=True
        )
        if low is None:
            return Range(span.after, span.after)
        first, last = sorted((abs(low), abs(high)))
        return Range(first - 1, last)

    def count_rows(self, ranges: Mapping[str, WriterRanges], limit: int) -> Mapping[str, RowCount]:
        """Count the rows of some streams, of each up to a limit."""
        statement = counted_rows(
            {stream: self._ids_in_order(stream, each) for stream, each in ranges.items()}, limit
        )
        found = self._database.run(
            "count ahead", lambda txn: txn.execute(statement).fetchall(), read_only=True
        )
        return {stream: RowCount(rows, last) for stream, rows, last in found}

    def _ids_in_order(self, stream: str, ranges: WriterRanges) -> str:
        stream_schema = self.stream_schema(stream)
        within = in_ranges(stream_schema, ranges, ids(ranges.span, stream_schema.counts_down))
        return (
            f"SELECT rows.stream_id FROM {table_name(self._streams[stream])} AS rows"
            f" WHERE {within} {in_order(stream_schema)}"
        )

    def identity_sql(self) -> str:
        """A statement that is true in the observed database, see :class:`.SourceDatabase`."""
        return self._identity.identity_sql(self._log, self.incarnation)

    def trimmed_sql(self, stream: str) -> str | None:
        """A statement for the token up to which facts have been trimmed."""
        return f"SELECT trimmed FROM synrepl._streams WHERE stream = {literal(stream)}"

    def watermarks(self) -> Mapping[str, Sequence[PositionMark]]:
        """By stream, the recorded positions and their times, oldest first; retention uses them too."""
        found: dict[str, list[PositionMark]] = {}
        for stream, at, token in self._database.run(
            "read the marks", lambda txn: txn.execute(_MARKS).fetchall(), read_only=True
        ):
            found.setdefault(stream, []).append(PositionMark(float(at), int(token)))
        return found

    def erased_subjects(self) -> Set[str]:
        """The subjects that ``synrepl.erase()`` was called with."""
        return self._database.run("read the erased", erased_subjects, read_only=True)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


def _read(
    txn: Transaction,
) -> tuple[
    DatabaseIdentity,
    str,
    dict[str, Stream],
    dict[str, StreamSchema],
    dict[str, dict[str, ColumnStatistics]],
]:
    streams: dict[str, Stream] = {}
    cells: dict[str, list[Column]] = {}
    statistics: dict[str, dict[str, ColumnStatistics]] = {}
    heads = {column.name for column in HEAD}
    for name, down, sequence, column, type_, nullable, *known in txn.execute(_COLUMNS).fetchall():
        numbered = str(sequence).removeprefix('synrepl."_').removesuffix('_seq"')
        streams[name] = Stream(
            name, {}, counts_down=down, numbered_with=None if numbered == name else numbered
        )
        found = cells.setdefault(name, [])
        if known[0] is not None:
            statistics.setdefault(name, {})[column] = ColumnStatistics(*known)
        if column not in heads:
            found.append(Column(str(column), _TYPES[type_], bool(nullable)))
    stream_schemas = {
        name: StreamSchema(name, stream.counts_down, tuple(cells[name]))
        for name, stream in streams.items()
    }
    return identify(txn), log_position(txn), streams, stream_schemas, statistics
