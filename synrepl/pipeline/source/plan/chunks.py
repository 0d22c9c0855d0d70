"""What one task reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from synrepl.core.tokens import Range, Token
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.sql import Scan
from synrepl.pipeline.source.writer_ranges import WriterRanges, cap_position
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Trimmed


class ScanChunk(msgspec.Struct, frozen=True):
    """Part of one stream's range, made so that any process can read it, any number of times.

    :ivar after: tokens above it and
    :ivar upto: no further are in it, though perhaps not of every writer
    :ivar scan: of its rows, in order
    :ivar raw: of the same rows as text, see :meth:`.SourceDatabase.raw_scan`
    :ivar identity_sql: gives true where it may be read, see :meth:`.SourceDatabase.identity_sql`
    :ivar trimmed_sql: gives up to where facts are gone; None where nobody trims
    :ivar rows: about how many there are
    """

    stream: str
    after: Token
    upto: Token
    scan: Scan
    raw: Scan
    identity_sql: str
    trimmed_sql: str | None
    rows: int

    @property
    def sql(self) -> str:
        """Gives its rows, in order."""
        return self.scan.between(Range(self.after, self.upto))

    def within(self, after: Token, upto: Token) -> ScanChunk:
        """The part in a smaller range."""
        return msgspec.structs.replace(self, after=after, upto=upto)

    def as_text(self) -> ScanChunk:
        """The same facts, as text."""
        return msgspec.structs.replace(self, scan=self.raw)


#: Rows that one task reads. Memory does not depend on it: rows are read as they come.
CHUNK_ROWS = 500_000

Vectors = Mapping[str, PositionVector]


def plan_chunks(
    source: SourceDatabase,
    start: Vectors,
    end: Vectors,
    columns: Mapping[str, Sequence[str]],
    rows: int = CHUNK_ROWS,
    also: str = "",
) -> Iterator[ScanChunk]:
    """What lies between two positions, in parts of about ``rows`` rows, stream by stream.

    :param columns: by stream, which to read
    :param also: a condition on columns, in SQL
    """
    for stream, upto in end.items():
        for ranges in WriterRanges.between(start.get(stream, PositionVector()), upto).parts():
            if ranges.empty:
                continue
            estimate, occupied = (
                partial(source.estimate_rows, stream),
                partial(source.occupied_range, stream),
            )
            for part, expected in split_evenly(ranges, rows, estimate, occupied):
                yield ScanChunk(
                    stream,
                    *part.span,
                    source.scan(stream, part, columns[stream], also),
                    source.raw_scan(stream, part),
                    source.identity_sql(),
                    source.trimmed_sql(stream),
                    expected,
                )


def limit_rows(
    source: SourceDatabase, start: Vectors, end: Vectors, rows: int
) -> dict[str, PositionVector]:
    """The position up to ``end`` before which there are about ``rows`` rows, shared by the streams.

    Facts are never split, so one alone may have more.
    """
    share = max(1, rows // max(1, len(end)))
    found = {}
    for stream, upto in end.items():
        since = start.get(stream, PositionVector())
        ranges = WriterRanges.between(since, upto)
        token = None if ranges.empty else source.token_at_row(stream, ranges, share)
        found[stream] = upto if token is None else cap_position(since, upto, token)
    return found


def check_not_trimmed(stream: str, start: PositionVector, trimmed: int) -> None:
    """Refuse a start from which facts are gone.

    :raises Trimmed: some that were to come next are
    """
    after = min([start.linear, *(start[writer] for writer in start.writers)])
    if trimmed > after:
        raise Trimmed(stream=stream, trimmed=trimmed, after=after)


#: At most so many parts of one range, whatever the statistics say: each is a task.
MAX_PARTS = 1024


def split_evenly(
    ranges: WriterRanges,
    wanted: int,
    rows: Callable[[WriterRanges], int],
    occupied: Callable[[Range], Range],
) -> Iterator[tuple[WriterRanges, int]]:
    """Cut until each part has no more than ``wanted`` rows.

    Evenly by *tokens*: where they are dense, more cuts are made. Where there are none, as in the
    gap that a failover of the database leaves, no part is made: the next one begins where the
    last one ends, so that together they are always the whole. A part that the statistics are
    wrong about is slower than it should be, never wrong.

    :param rows: about how many rows are in a part
    :param occupied: the tokens of a range between the first and the last that have rows
    :returns: the parts in order, at least one, with about how many rows each has
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
    """Ranges that have rows, in order, with about how many each has."""
    waiting = [ranges.span]
    parts = 1
    while waiting:
        span = occupied(waiting.pop())
        if span.empty:
            parts -= 1
            continue
        expected = rows(ranges.within(span))
        width = span.upto - span.after
        if expected <= wanted or width <= 1 or parts >= MAX_PARTS:
            yield span, expected
            continue
        # Evenly into as many as there should be, rather than in two, saves asking.
        pieces = min(_pieces(expected, wanted), width, MAX_PARTS - parts + 1)
        edges = [span.after + width * n // pieces for n in range(pieces + 1)]
        cut = [Range(after, upto) for after, upto in itertools.pairwise(edges) if upto > after]
        parts += len(cut) - 1
        waiting += reversed(cut)


def _pieces(expected: int, wanted: int) -> int:
    return min(-(-expected // wanted), 16)
