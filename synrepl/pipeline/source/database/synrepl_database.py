"""Streams of synrepl's own tables. Their columns are read from the tables, so no configuration is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TypeVar

from synrepl.core.tokens import Range, Token
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.bounds import StreamBounds
from synrepl.pipeline.source.database.doubtful_rows import DoubtfulRow, explained_sql
from synrepl.pipeline.source.database.identity import DatabaseIdentity, identify, log_position
from synrepl.pipeline.source.database.landed_states import STATE_COLUMNS
from synrepl.pipeline.source.database.packing import (
    ColumnStatistics,
    PackedScan,
    packed,
    rows_per_group,
)
from synrepl.pipeline.source.database.room_rights import RoomRights
from synrepl.pipeline.source.database.source_database import RowCount, no_such_stream
from synrepl.pipeline.source.database.sql import (
    HIGH,
    LOW,
    Scan,
    counted_rows,
    fetched_in_parts,
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
from synrepl.pipeline.source.database.whole_events import (
    BASES,
    FORM,
    STORED_JSON,
    RedactedRow,
    base_of,
    events_sql,
    facts_sql,
    redacted_sql,
    whole_event_schema,
)
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

T = TypeVar("T")

_TYPES = {word.sql: word for word in ColumnType}

#: With the value of columns that have only one.
_COLUMNS = f"""
    SELECT s.stream, s.counts_down, s.sequence, a.attname, format_type(a.atttypid, a.atttypmod),
           NOT a.attnotnull, w.avg_width, w.null_frac, w.n_distinct,
           CASE w.n_distinct WHEN 1 THEN {readable("(w.most_common_vals::text::text[])[1]")} END
    FROM synrepl._streams s
    JOIN pg_attribute a ON a.attrelid = format('synrepl.%I', s.stream)::regclass
    LEFT JOIN pg_stats w
        ON w.schemaname = 'synrepl' AND w.tablename = s.stream AND w.attname = a.attname
    WHERE a.attnum > 0 AND NOT a.attisdropped
    ORDER BY s.stream, a.attnum
"""

#: Lengths in which all texts of a column agree that the statistics have. None in another encoding than the client's, in
#: which texts have other lengths, nor without one, because bytes of two texts may look like one character.
_LENGTHS = """
    SELECT w.attname, min(octet_length(v)) FROM pg_stats w,
        unnest(w.most_common_vals::text::text[] || w.histogram_bounds::text::text[]) v
    WHERE w.schemaname = 'synrepl' AND w.tablename = %s
        AND current_setting('server_encoding') = 'UTF8'
    GROUP BY w.attname HAVING min(octet_length(v)) = max(octet_length(v))
"""

#: A range of so many rows is worth asking for the lengths of texts, which takes some milliseconds for a stream.
_MANY_ROWS = 100_000

_MARKS = """
    SELECT stream, extract(epoch FROM at)::float8, token FROM synrepl._stream_marks
    ORDER BY at, token
"""


class SynreplDatabase:
    """Implements :class:`.SourceDatabase` over synrepl's own tables.

    If it has or had events of rooms, and its user may read them, it has the streams of whole events, too.
    """

    is_lossy = False

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database
        self._bounds: dict[str, StreamBounds] = {}
        self._lengths: dict[str, dict[str, int]] = {}
        self.incarnation = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the streams and their columns again."""
        found = self._database.run("read the streams", _read, read_only=True)
        self._identity, self._log, self._streams, stream_schemas, self._statistics, rights = found
        offered = [name for name, base in BASES.items()
                   if base in self._streams and name not in self._streams]  # fmt: skip
        whole = {name: whole_event_schema(name) for name in offered if rights.has_events}
        self._lengths.clear()
        self._stream_schemas = {**stream_schemas, **whole}
        self._whole = frozenset(whole)
        reasons = {name: rights.why_unreadable(name) for name in offered}
        self._unreadable = {name: why for name, why in reasons.items() if why is not None}
        self.server = str(self._identity)

    @property
    def streams(self) -> Sequence[str]:
        """The names of all streams."""
        return sorted(self._stream_schemas)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Empty: all of its tables can be read."""
        return {}

    @property
    def whole_events(self) -> Set[str]:
        """The streams of whole events."""
        return self._whole

    @property
    def unreadable_whole_events(self) -> Mapping[str, str]:
        """The streams of whole events that lack rights or an upgrade of the schema, each with the reason."""
        return self._unreadable

    def stream_schema(self, stream: str) -> StreamSchema:
        """The columns of a stream, from its table."""
        try:
            return self._stream_schemas[stream]
        except KeyError:
            raise no_such_stream(stream, self.streams) from None

    def observe(self, streams: Sequence[str]) -> Mapping[str, SafeBound]:
        """How far each stream may be read. Reads the sequences first, and then who holds tokens."""
        bases = {stream: self._base(self.stream_schema(stream).stream) for stream in streams}
        wanted = [self._streams[base] for base in dict.fromkeys(bases.values())]

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
        found = {
            name: self._bounds.setdefault(name, StreamBounds()).update(each, locks)
            for name, each in seen.items()
        }
        return {stream: found[base] for stream, base in bases.items()}

    def given_out(self, streams: Iterable[str]) -> Mapping[str, Token]:
        """By stream, the last token that can have been given out, by sequence, table and records."""
        bases = {stream: self._streams[self._base(stream)] for stream in streams}

        def work(txn: Transaction) -> Mapping[str, Token]:
            if txn.execute("SELECT pg_is_in_recovery()").fetchone()[0]:
                return {}
            if incarnations.read(txn, self._identity.system) != self.incarnation:
                return {}  # the next observation detects it
            return {stream: writers.given_out(txn, base) for stream, base in bases.items()}

        return self._database.run("read what was given out", work, read_only=True)

    def survived_since(self, incarnation: int) -> Mapping[str, PositionVector]:
        """By stream, the position up to which everything survived the failovers since an incarnation."""
        losses = self._database.run(
            "read what failovers have lost",
            lambda txn: incarnations.lost_since(txn, incarnation),
            read_only=True,
        )
        found = {stream: losses.kept(self._base(stream)) for stream in self.streams}
        return {stream: kept for stream, kept in found.items() if kept is not None}

    def skipped_ranges(self) -> Mapping[str, Sequence[Range]]:
        """By stream, the ranges of tokens that failovers skipped."""
        return self._with_whole(
            self._database.run("read the gaps", incarnations.gaps, read_only=True)
        )

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
        has_form = stream in self._whole and "json" in columns
        if has_form:
            wanted = wanted.replace(identifier("json"), f"{STORED_JSON} AS {identifier('json')}")
        with_states = any(each.name in wanted + condition for each in STATE_COLUMNS)
        return self._scan(
            stream, ranges, wanted, condition, ordered, has_form=has_form, with_states=with_states
        )

    def packed_scan(
        self, stream: str, ranges: WriterRanges, columns: Sequence[str], scan: Scan, rows: int
    ) -> PackedScan | None:
        """A statement that selects the rows of a scan in groups; None if it would not be faster."""
        # Groups of a stream that counts down would come in the wrong order, and forms are told by row.
        if scan.counts_down or stream in self._whole:
            return None
        by_name = {column.name: column for column in self.stream_schema(stream).columns}
        wanted = [by_name[name] for name in columns]
        known = self._known(stream, rows)
        tokens = rows_per_group(wanted, known, ranges.span, rows)
        return packed(scan, wanted, known, tokens) if tokens else None

    def _known(self, stream: str, rows: int) -> Mapping[str, ColumnStatistics]:
        """What is known of the columns of a stream, for a read of so many rows."""
        known = self._statistics.get(stream, {})
        if rows < _MANY_ROWS:
            return known
        if stream not in self._lengths:
            self._lengths[stream] = self._database.run(
                "read the lengths of texts",
                lambda txn: dict(txn.execute(_LENGTHS, (stream,)).fetchall()),
                read_only=True,
            )
        lengths = self._lengths[stream]
        return {name: each._replace(length=lengths.get(name)) for name, each in known.items()}

    def raw_scan(self, stream: str, ranges: WriterRanges) -> Scan:
        """A statement that selects all rows as text."""
        # Without the JSON of an event: it is what may not be text, and would have to be erased there, too.
        cells = ", ".join(
            f"{readable(f'CAST({name} AS text)')} AS {name}"
            for name in (identifier(column.name) for column in self.stream_schema(stream).cells)
        )
        whole = f"(SELECT CAST(row_to_json(cells) AS text) FROM (SELECT {cells}) AS cells)"
        head = selected(self.stream_schema(stream), [column.name for column in HEAD])
        return self._scan(stream, ranges, f"{head}, {whole} AS cells", is_raw=True)

    def _scan(
        self,
        stream: str,
        ranges: WriterRanges,
        wanted: str,
        condition: str = "",
        ordered: bool = True,
        *,
        is_raw: bool = False,
        has_form: bool = False,
        with_states: bool = True,
    ) -> Scan:
        """A statement that selects rows.

        :param wanted: the select list
        :param is_raw: it has to succeed whatever the values are
        :param with_states: the columns of states are needed
        """
        stream_schema = self.stream_schema(stream)
        where = in_ranges(stream_schema, ranges, (LOW, HIGH)) + (
            f" AND ({condition})" if condition else ""
        )
        table = (
            events_sql(self._base(stream), LOW, HIGH, with_json=not is_raw, with_states=with_states)
            if stream in self._whole
            else table_name(self._streams[stream])
        )
        return Scan(
            f"SELECT {wanted}{f', {FORM}' if has_form else ''} FROM {table} AS rows WHERE {where}"
            + (f" {in_order(stream_schema)}" if ordered else ""),
            stream_schema.counts_down,
            has_form,
        )

    def _base(self, stream: str) -> str:
        """The stream whose facts a stream has."""
        return base_of(stream, self._whole)

    def _facts(self, stream: str) -> str:
        """The heads of the rows of a stream, as a relation."""
        if stream in self._whole:
            return facts_sql(self._base(stream))
        return table_name(self._streams[stream])

    def _with_whole(self, by_stream: Mapping[str, Sequence[T]]) -> Mapping[str, Sequence[T]]:
        """What is known of streams, with the same for those of whole events."""
        whole = {name: by_stream[BASES[name]] for name in self._whole if BASES[name] in by_stream}
        return {**by_stream, **whole}

    def estimate_rows(self, stream: str, ranges: WriterRanges) -> int:
        """The number of rows that the planner of Postgres expects; one per token without statistics."""
        stream_schema = self.stream_schema(stream)
        table = table_name(self._streams[self._base(stream)])
        where = in_ranges(stream_schema, ranges, ids(ranges.span, stream_schema.counts_down))

        def work(txn: Transaction) -> int:
            txn.execute(f"SELECT reltuples < 0 FROM pg_class WHERE oid = '{table}'::regclass")
            if txn.fetchone()[0]:
                return ranges.span.upto - ranges.span.after
            return planned_rows(txn, f"SELECT 1 FROM {self._facts(stream)} AS rows WHERE {where}")

        return self._database.run("estimate", work, read_only=True)

    def occupied_range(self, stream: str, span: Range) -> Range:
        """The tokens of a range between the first and the last that have rows; empty without any."""
        down = self.stream_schema(stream).counts_down
        statement = (
            f"SELECT min(stream_id), max(stream_id) FROM {self._facts(stream)} AS rows"
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
            f"SELECT rows.stream_id FROM {self._facts(stream)} AS rows"
            f" WHERE {within} {in_order(stream_schema)}"
        )

    def identity_sql(self) -> str:
        """A statement that is true in the observed database, see :class:`.SourceDatabase`."""
        return self._identity.identity_sql(self._log, self.incarnation)

    def trimmed_sql(self, stream: str) -> str | None:
        """A statement for the token up to which facts have been trimmed."""
        return f"SELECT trimmed FROM synrepl._streams WHERE stream = {literal(self._base(stream))}"

    def watermarks(self) -> Mapping[str, Sequence[PositionMark]]:
        """By stream, the recorded positions and their times, oldest first; retention uses them too."""
        found: dict[str, list[PositionMark]] = {}
        for stream, at, token in self._database.run(
            "read the marks", lambda txn: txn.execute(_MARKS).fetchall(), read_only=True
        ):
            found.setdefault(stream, []).append(PositionMark(float(at), int(token)))
        return self._with_whole(found)

    def erased_subjects(self) -> Set[str]:
        """The subjects that ``synrepl.erase()`` was called with, and users whose accounts were erased."""
        return self._database.run("read the erased", erased_subjects, read_only=True)

    def redacted_events(
        self,
        stream: str,
        since: PositionVector,
        upto: PositionVector,
        collect: Callable[[Iterable[RedactedRow]], T],
    ) -> T:
        """The events to which redactions between two positions apply; see :mod:`.whole_events`."""
        stream_schema, ranges = self.stream_schema(stream), WriterRanges.between(since, upto)
        if stream not in self._whole or ranges.empty:
            return collect(())
        low, high = ids(ranges.span, stream_schema.counts_down)
        where = in_ranges(stream_schema, ranges, (low, high))
        statement = redacted_sql(self._base(stream), where, low, high)
        return self._database.run(
            "read what was redacted",
            lambda txn: collect(fetched_in_parts(txn, statement)),
            read_only=True,
        )

    def explained_rows(self, stream: str, rows: Sequence[DoubtfulRow]) -> Set[int]:
        """Those of some rows that the database may have changed, by their stream IDs; see :mod:`.doubtful_rows`."""
        if stream not in self._whole or not rows:
            return frozenset()
        statement = explained_sql(self._base(stream))
        fields = [list(column) for column in zip(*rows, strict=True)]
        found = self._database.run(
            "ask what was purged",
            lambda txn: txn.execute(statement, fields).fetchall(),
            read_only=True,
        )
        return frozenset(int(stream_id) for (stream_id,) in found)

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
    RoomRights,
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
    rights = RoomRights(txn)
    return identify(txn), log_position(txn), streams, stream_schemas, statistics, rights
