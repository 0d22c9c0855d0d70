"""Streams of a real Synapse's database, read-only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TypeVar

from synrepl.core.tokens import Range, Token
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.doubtful_rows import DoubtfulRow
from synrepl.pipeline.source.database.identity import DatabaseIdentity, identify, log_position
from synrepl.pipeline.source.database.packing import PackedScan
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
    selected,
)
from synrepl.pipeline.source.database.stream_schema import RAW, StreamSchema
from synrepl.pipeline.source.database.whole_events import RedactedRow
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.erased import erased_users
from synrepl.storage.foreign.bounds import (
    SETTLE_S,
    ForeignBounds,
    OpenForeignTransaction,
    SafeBound,
    open_transactions,
)
from synrepl.storage.foreign.paging import MAIN_PROCESS, RAW_CELLS, ForeignFacts
from synrepl.storage.foreign.progress import (
    NEWEST_ROWS,
    ForeignProgress,
    given_out,
    observe,
    sole_writer,
)
from synrepl.storage.foreign.release import Release, UnknownSchema, recognise
from synrepl.storage.position_marks import PositionMark
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.columns import columns as columns_of
from synrepl.streams.synapse import SYNAPSE_STREAMS

T = TypeVar("T")

#: Time limit of a planning statement, in ms: the database serves a live Synapse.
_STATEMENT_MS = 30_000


class SynapseDatabase:
    """Implements :class:`.SourceDatabase` over a real Synapse's tables.

    Real servers delete rows that are superseded or delivered, so a range that is read again may
    have fewer rows.

    :param settle_s: see :class:`.ForeignBounds`
    :param now: a monotonic clock, in seconds
    :raises NotSynapse: it lacks the tables that every release has
    """

    is_lossy = True
    incarnation = 1

    def __init__(
        self,
        database: BlockingDatabase,
        settle_s: float = SETTLE_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._settle_s = settle_s
        self._now = now
        self._catalogue = Catalogue(SYNAPSE_STREAMS)
        self._bounds: dict[str, ForeignBounds] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read again which release the tables belong to."""
        self._identity, self._log, self._release, self._sole = self._read("recognise", _recognise)
        self.server = str(self._identity)

    @property
    def streams(self) -> Sequence[str]:
        """The names of all streams of the release that have tables."""
        return sorted(name for name in self._release.streams if name in self._catalogue)

    @property
    def left_out(self) -> Mapping[str, str]:
        """The streams whose tables lack columns of every known release, each with the reason."""
        release = self._release
        return {
            stream: str(UnknownSchema(version=release.version, stream=stream, missing=missing))
            for stream, missing in sorted(release.unknown.items())
        }

    @property
    def whole_events(self) -> Set[str]:
        """None."""
        return frozenset()

    @property
    def unreadable_whole_events(self) -> Mapping[str, str]:
        """None."""
        return {}

    def stream_schema(self, stream: str) -> StreamSchema:
        """The columns of a stream, from the catalogue.

        :raises UnknownSchema: its tables lack known columns
        """
        if stream in self._release.unknown:
            self._release.locate(stream)
        if stream not in self.streams:
            raise no_such_stream(stream, self.streams)
        known = self._catalogue[stream]
        return StreamSchema(stream, known.counts_down, columns_of(known))

    def observe(self, streams: Sequence[str]) -> Mapping[str, SafeBound]:
        """How far each stream may be read, from recorded positions and repeated observations."""
        for stream in streams:
            self.stream_schema(stream)

        def work(
            txn: Transaction,
        ) -> tuple[Mapping[str, ForeignProgress], list[OpenForeignTransaction], str, float]:
            found = observe(txn, self._release, NEWEST_ROWS)
            open_now = open_transactions(txn)
            return found, open_now, log_position(txn), self._now()

        # Not in one snapshot: open transactions have to be read after the sequences.
        found, open_now, self._log, now = self._read("look", work, Isolation.READ_COMMITTED)
        return {
            stream: self._bounds.setdefault(stream, ForeignBounds(self._settle_s)).update(
                found[stream].recorded,
                max(found[stream].last or 0, found[stream].highest),
                open_now,
                now,
            )
            for stream in streams
        }

    def given_out(self, streams: Iterable[str]) -> Mapping[str, Token]:
        """By stream with a sequence, the last token that can have been given out."""

        def work(txn: Transaction) -> Mapping[str, Token]:
            if txn.execute("SELECT pg_is_in_recovery()").fetchone()[0]:
                return {}
            return given_out(txn, self._release, streams)

        return self._read("read what was given out", work)

    def survived_since(self, incarnation: int) -> Mapping[str, PositionVector]:
        """Empty: Synapse does not record what a failover has lost."""
        return {}

    def skipped_ranges(self) -> Mapping[str, Sequence[Range]]:
        """Empty: its sequences are not advanced by failovers."""
        return {}

    def scan(
        self,
        stream: str,
        ranges: WriterRanges,
        columns: Sequence[str],
        condition: str = "",
        ordered: bool = True,
    ) -> Scan:
        """A statement that selects rows in the order of their tokens, which their numbers need anyway."""
        stream_schema = self.stream_schema(stream)
        return self._scan(
            stream_schema, ranges, selected(stream_schema, columns), condition=condition
        )

    def packed_scan(
        self, stream: str, ranges: WriterRanges, columns: Sequence[str], scan: Scan, rows: int
    ) -> PackedScan | None:
        """None: a scan numbers the rows of several tables, which would begin anew for each group."""
        return None

    def raw_scan(self, stream: str, ranges: WriterRanges) -> Scan:
        """A statement that selects all rows as text, with the cells of the table that each is from."""
        wanted = ", ".join(identifier(column.name) for column in RAW)
        return self._scan(self.stream_schema(stream), ranges, wanted, raw=True)

    def _scan(
        self,
        stream_schema: StreamSchema,
        ranges: WriterRanges,
        wanted: str,
        condition: str = "",
        raw: bool = False,
    ) -> Scan:
        where = in_ranges(stream_schema, ranges, (LOW, HIGH)) + (
            f" AND ({condition})" if condition else ""
        )
        facts = self._facts(stream_schema)
        union = facts.union(LOW, HIGH, self._unnamed(stream_schema), raw=raw)
        cells = [RAW_CELLS] if raw else [identifier(column.name) for column in stream_schema.cells]
        order = f"part, place, {RAW_CELLS}" if raw else facts.order
        return Scan(
            f"SELECT {wanted} FROM (SELECT stream_id, writer, {', '.join(cells)}, row_number() OVER"
            f" (PARTITION BY stream_id ORDER BY {order}) - 1 AS row_no"
            f" FROM ({union}) AS facts) AS rows"
            f" WHERE {where} {in_order(stream_schema)}",
            stream_schema.counts_down,
        )

    def estimate_rows(self, stream: str, ranges: WriterRanges) -> int:
        """The number of rows that the planner of Postgres expects."""
        stream_schema = self.stream_schema(stream)
        between = ids(ranges.span, stream_schema.counts_down)
        statement = self._facts(stream_schema).union(*between, self._unnamed(stream_schema))
        return self._read("estimate", lambda txn: planned_rows(txn, statement))

    def occupied_range(self, stream: str, span: Range) -> Range:
        """The range itself: a stream is in several tables, and has no large gaps."""
        return span

    def count_rows(self, ranges: Mapping[str, WriterRanges], limit: int) -> Mapping[str, RowCount]:
        """Count the rows of some streams, of each up to a limit."""
        # Not in one statement, because each may take as long as a statement may.
        statements = [
            counted_rows({stream: self._ids_in_order(stream, each)}, limit)
            for stream, each in ranges.items()
        ]
        found = self._read(
            "count ahead", lambda txn: [txn.execute(each).fetchone() for each in statements]
        )
        return {stream: RowCount(rows, last) for stream, rows, last in found}

    def _ids_in_order(self, stream: str, ranges: WriterRanges) -> str:
        stream_schema = self.stream_schema(stream)
        between = ids(ranges.span, stream_schema.counts_down)
        union = self._facts(stream_schema).union(*between, self._unnamed(stream_schema))
        return (
            f"SELECT stream_id FROM ({union}) AS rows"
            f" WHERE {in_ranges(stream_schema, ranges, between)} ORDER BY abs(stream_id)"
        )

    def identity_sql(self) -> str:
        """A statement that is true in the observed database, see :class:`.SourceDatabase`."""
        return self._identity.identity_sql(self._log)

    def trimmed_sql(self, stream: str) -> str | None:
        """None: deletions are not recorded."""
        return None

    def watermarks(self) -> Mapping[str, Sequence[PositionMark]]:
        """Empty: Synapse does not record any."""
        return {}

    def erased_subjects(self) -> Set[str]:
        """The users whom the server has erased."""
        return self._read("read the erased", erased_users)

    def redacted_events(
        self,
        stream: str,
        since: PositionVector,
        upto: PositionVector,
        collect: Callable[[Iterable[RedactedRow]], T],
    ) -> T:
        """None: it has no stream of whole events."""
        return collect(())

    def explained_rows(self, stream: str, rows: Sequence[DoubtfulRow]) -> Set[int]:
        """None: it has no stream of whole events."""
        return frozenset()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _facts(self, stream_schema: StreamSchema) -> ForeignFacts:
        return ForeignFacts(
            self._catalogue[stream_schema.stream], self._release.locate(stream_schema.stream)
        )

    def _unnamed(self, stream_schema: StreamSchema) -> str:
        """The writer of rows that do not name one, as an SQL literal."""
        return literal(self._sole.get(stream_schema.stream) or MAIN_PROCESS)

    def _read(
        self,
        name: str,
        work: Callable[[Transaction], T],
        isolation: Isolation = Isolation.REPEATABLE_READ,
    ) -> T:
        def bounded(txn: Transaction) -> T:
            txn.execute("SELECT set_config('statement_timeout', %s, true)", (str(_STATEMENT_MS),))
            return work(txn)

        return self._database.run(name, bounded, read_only=True, isolation=isolation)


def _recognise(txn: Transaction) -> tuple[DatabaseIdentity, str, Release, dict[str, str | None]]:
    identity, log = identify(txn), log_position(txn)
    release = recognise(txn)
    sole = {name: sole_writer(txn, release, name) for name in release.streams}
    return identity, log, release, sole
