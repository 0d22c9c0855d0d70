"""Plans scans: cuts the range between two positions into chunks of similar size, one per task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from synrepl.core.tokens import Range, Token
from synrepl.pipeline.source.database.packing import PackedScan
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.sql import Scan
from synrepl.pipeline.source.where.condition import (
    Condition,
    facts_at_most,
    may_match_stream,
    to_sql,
    token_range,
)
from synrepl.pipeline.source.writer_ranges import WriterRanges, cap_position
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Trimmed


class ScanChunk(msgspec.Struct, frozen=True):
    """A part of a stream that one task reads. Any process can read it, any number of times.

    :ivar after: its tokens are above this
    :ivar upto: and at or below this; of some writers it may have fewer
    :ivar scan: selects its rows, in order
    :ivar packed: selects the same rows in groups, see :func:`.packing.packed`; None if it would not pay
    :ivar raw: selects the same rows as text, see :meth:`.SourceDatabase.raw_scan`
    :ivar identity_sql: is true where it may be read, see :meth:`.SourceDatabase.identity_sql`
    :ivar trimmed_sql: selects the token up to which facts are trimmed; None without trimming
    :ivar rows: the estimated number of rows
    :ivar snapshot: the name of an exported snapshot at which it is read; "" for one of its own
    """

    stream: str
    after: Token
    upto: Token
    scan: Scan
    packed: PackedScan | None
    raw: Scan
    identity_sql: str
    trimmed_sql: str | None
    rows: int
    snapshot: str = ""

    @property
    def tokens(self) -> Range:
        """Its tokens."""
        return Range(self.after, self.upto)

    @property
    def sql(self) -> str:
        """The statement that selects its rows, in order."""
        return self.scan.between(self.tokens)

    def within(self, after: Token, upto: Token) -> ScanChunk:
        """The part of it in a smaller range."""
        return msgspec.structs.replace(self, after=after, upto=upto)

    def at(self, snapshot: str) -> ScanChunk:
        """The same rows, as they are in a snapshot that somebody holds."""
        return msgspec.structs.replace(self, snapshot=snapshot)

    def as_text(self) -> ScanChunk:
        """The same rows, as text."""
        return msgspec.structs.replace(self, scan=self.raw, packed=None)

    def row_by_row(self) -> ScanChunk:
        """The same rows, not in groups."""
        return msgspec.structs.replace(self, packed=None)


#: Number of rows that one task reads. Memory does not depend on it, because rows are streamed.
CHUNK_ROWS = 500_000

Vectors = Mapping[str, PositionVector]


def plan_chunks(
    source: SourceDatabase,
    start: Vectors,
    end: Vectors,
    columns: Mapping[str, Sequence[str]],
    rows: int = CHUNK_ROWS,
    where: Condition | None = None,
    ordered: bool = True,
    counts: Mapping[str, int] | None = None,
) -> Iterator[ScanChunk]:
    """Plan a scan from ``start`` to ``end``: chunks of about ``rows`` rows, stream by stream.

    :param columns: by stream, the names of the columns to read
    :param where: an additional condition, see :func:`.where.condition.check_condition`
    :param ordered: whether the rows of a chunk are read in the order of their tokens
    :param counts: by stream, the number of rows, where it is known; saves asking for estimates
    """
    counts = counts or {}
    listed = facts_at_most(where)
    for stream, ranges in _ranges(source, start, end, where):
        condition = to_sql(where, source.stream_schema(stream))
        parts = [(ranges, listed or 0)]  # those listed are found by the index, wherever they are
        if counts.get(stream, rows + 1) <= rows:
            parts = [(ranges, counts[stream])]
        elif listed is None or listed > rows:
            estimate = partial(source.estimate_rows, stream)
            parts = [*split_evenly(ranges, rows, estimate, partial(source.occupied_range, stream))]
        for part, expected in parts:
            scan = source.scan(stream, part, columns[stream], condition, ordered)
            yield ScanChunk(
                stream,
                *part.span,
                scan,
                None
                if listed
                else source.packed_scan(stream, part, columns[stream], scan, expected),
                source.raw_scan(stream, part),
                source.identity_sql(),
                source.trimmed_sql(stream),
                expected,
            )


def rows_per_chunk(
    source: SourceDatabase, start: Vectors, end: Vectors, chunks: int, where: Condition | None
) -> int:
    """The number of rows per chunk for which :func:`plan_chunks` plans about ``chunks`` chunks."""
    expected = sum(
        source.estimate_rows(stream, ranges)
        for stream, ranges in _ranges(source, start, end, where)
    )
    return max(1, -(-expected // chunks))


def _ranges(
    source: SourceDatabase, start: Vectors, end: Vectors, where: Condition | None
) -> Iterator[tuple[str, WriterRanges]]:
    """The ranges in which rows may lie, by stream."""
    for stream, upto in end.items():
        if not may_match_stream(where, stream):
            continue
        span = token_range(where, source.stream_schema(stream))
        for part in WriterRanges.between(start.get(stream, PositionVector()), upto).parts():
            ranges = part.within(span)
            if not ranges.empty:
                yield stream, ranges


class LimitedRows(NamedTuple):
    """How far to read of some streams.

    :ivar ends: by stream, the position up to which to read
    :ivar counts: by stream, the number of rows up to there; a fact that reaches beyond the limit is
        counted in part
    """

    ends: dict[str, PositionVector]
    counts: dict[str, int]

    @property
    def rows(self) -> int:
        """The number of rows of all streams."""
        return sum(self.counts.values())


def limit_rows(source: SourceDatabase, start: Vectors, end: Vectors, rows: int) -> LimitedRows:
    """Lower ``end`` so that about ``rows`` rows of each stream lie before it.

    Facts are never split, so a single fact may have more rows.
    """
    since = {stream: start.get(stream, PositionVector()) for stream in end}
    ranges = {stream: WriterRanges.between(since[stream], upto) for stream, upto in end.items()}
    some = {stream: each for stream, each in ranges.items() if not each.empty}
    counted = source.count_rows(some, max(1, rows)) if some else {}
    ends = {}
    for stream, upto in end.items():
        ends[stream] = upto
        if stream in counted and counted[stream].rows >= rows:
            token = counted[stream].last
            assert token is not None
            ends[stream] = cap_position(since[stream], upto, token)
    return LimitedRows(ends, {stream: each.rows for stream, each in counted.items()})


def check_not_trimmed(stream: str, start: PositionVector, trimmed: int) -> None:
    """Refuse a start position if facts above it have been trimmed.

    :raises Trimmed: facts above it have been trimmed
    """
    after = min([start.linear, *(start[writer] for writer in start.writers)])
    if trimmed > after:
        raise Trimmed(stream=stream, trimmed=trimmed, after=after)


#: A part may have so many times as many rows as wanted. Estimates of even parts differ by some hundredths, and each
#: part that is cut once more for that costs another task, and another file.
SLACK = 1.25

#: Maximum number of parts of one range, whatever the statistics say; each part is a task.
MAX_PARTS = 1024


def split_evenly(
    ranges: WriterRanges,
    wanted: int,
    rows: Callable[[WriterRanges], int],
    occupied: Callable[[Range], Range],
) -> Iterator[tuple[WriterRanges, int]]:
    """Cut ranges until each part has about ``wanted`` rows, and at most :data:`SLACK` times as many.

    Cuts are even by *token*, and there are more of them where rows are dense. A gap without rows,
    such as a failover leaves, gets no part of its own: the parts always cover the whole range.
    Wrong statistics make a part slower, never wrong.

    :param rows: estimates the number of rows of a part
    :param occupied: returns the tokens of a range between the first and the last that have rows
    :returns: the parts in order, at least one, each with its estimated number of rows
    """
    spans = list(_occupied_spans(ranges, wanted, rows, occupied)) or [(ranges.span, 0)]
    after = ranges.span.after
    for number, (span, expected) in enumerate(spans, 1):
        upto = span.upto if number < len(spans) else ranges.span.upto
        yield ranges.within(Range(after, upto)), expected
        after = upto


def _occupied_spans(
    ranges: WriterRanges,
    wanted: int,
    rows: Callable[[WriterRanges], int],
    occupied: Callable[[Range], Range],
) -> Iterator[tuple[Range, int]]:
    """The ranges that have rows, in order, each with its estimated number of rows."""
    waiting = [ranges.span]
    parts = 1
    while waiting:
        span = occupied(waiting.pop())
        if span.empty:
            parts -= 1
            continue
        expected = rows(ranges.within(span))
        width = span.upto - span.after
        if expected <= wanted * SLACK or width <= 1 or parts >= MAX_PARTS:
            yield span, expected
            continue
        # Cutting into the expected number of pieces at once, not in two, saves estimates.
        pieces = min(_pieces(expected, wanted), width, MAX_PARTS - parts + 1)
        edges = [span.after + width * n // pieces for n in range(pieces + 1)]
        cut = [Range(after, upto) for after, upto in itertools.pairwise(edges) if upto > after]
        parts += len(cut) - 1
        waiting += reversed(cut)


def _pieces(expected: int, wanted: int) -> int:
    return min(-(-expected // wanted), 16)
