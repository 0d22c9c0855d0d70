"""Writers' ranges between two positions, compared with all pairs of a writer and a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from synrepl.core.tokens import Range
from synrepl.pipeline.source.database.sql import ids, in_ranges
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.plan.chunks import MAX_PARTS, SLACK, split_evenly
from synrepl.pipeline.source.writer_ranges import WriterRanges, cap_position
from synrepl.positions.vector import PositionVector
from tests.storage.postgres import PostgresCase

HIGHEST = 12

#: The writers of the model; the last one is in no position.
WRITERS = ("a", "o'b", "stranger")

tokens = st.integers(0, HIGHEST)
vectors = st.builds(
    PositionVector, st.dictionaries(st.sampled_from(WRITERS[:2]), tokens), linear=tokens
)

Pair = tuple[str, int]


def wanted(start: PositionVector, end: PositionVector) -> set[Pair]:
    """The pairs after one position and up to the other."""
    return {
        (writer, token)
        for writer in WRITERS
        for token in range(1, HIGHEST + 1)
        if start[writer] < token <= end[writer]
    }


def inside(ranges: WriterRanges) -> set[Pair]:
    """The pairs in the ranges."""
    return {
        (writer, token)
        for writer in WRITERS
        for token in range(1, HIGHEST + 1)
        if token in ranges.span and token in ranges.writers.get(writer, ranges.others)
    }


def counted(parts: Iterable[WriterRanges]) -> Counter[Pair]:
    return Counter(pair for part in parts for pair in inside(part))


class WriterRangesCoverage(SynchronousTestCase):
    """Ranges cover each pair once."""

    @given(vectors, vectors)
    def test_ranges_have_the_tokens_between_two_positions(
        self, start: PositionVector, end: PositionVector
    ) -> None:
        ranges = WriterRanges.between(start, end)
        self.assertEqual(inside(ranges), wanted(start, end))
        self.assertEqual(ranges.empty, not wanted(start, end))

    @given(vectors, vectors)
    def test_parts_cover_every_token_once(self, start: PositionVector, end: PositionVector) -> None:
        parts = list(WriterRanges.between(start, end).parts())
        self.assertEqual(counted(parts), Counter(wanted(start, end)))
        self.assertLessEqual(len(parts), 3)
        edges = [edge for part in parts for edge in part.span]
        self.assertEqual(edges, sorted(edges))

    @given(vectors, vectors)
    def test_uniform_parts_need_no_condition_on_writers(
        self, start: PositionVector, end: PositionVector
    ) -> None:
        parts = list(WriterRanges.between(start, end).parts())
        for token in range(1, HIGHEST + 1):
            if {(writer, token) for writer in WRITERS} <= wanted(start, end):
                (part,) = (part for part in parts if token in part.span)
                self.assertTrue(part.is_uniform)

    @given(vectors, vectors, st.integers(1, 5), st.lists(st.integers(0, 3), min_size=HIGHEST + 1))
    def test_split_parts_cover_every_token_once(
        self, start: PositionVector, end: PositionVector, rows: int, density: list[int]
    ) -> None:
        def planned(part: WriterRanges) -> int:
            return sum(density[token] for _, token in inside(part))

        ranges = WriterRanges.between(start, end)

        def occupied(span: Range) -> Range:
            filled = [token for token in range(span.after + 1, span.upto + 1) if density[token]]
            return Range(filled[0] - 1, filled[-1]) if filled else Range(span.after, span.after)

        parts = list(split_evenly(ranges, rows, planned, occupied))
        self.assertEqual(counted(part for part, _ in parts), Counter(wanted(start, end)))
        for part, expected in parts:
            self.assertEqual(expected, planned(part))
            span = occupied(part.span)
            if span.upto - span.after > 1:
                self.assertLessEqual(expected, rows * SLACK)

    def test_estimates_that_differ_a_little_make_no_more_parts(self) -> None:
        ranges = WriterRanges.between(PositionVector(), PositionVector({}, 1000))

        def estimate(part: WriterRanges) -> int:
            tokens = part.span.upto - part.span.after
            return tokens + (tokens // 50 if part.span.after % 200 else -tokens // 50)

        parts = list(split_evenly(ranges, 100, estimate, lambda span: span))
        self.assertEqual([part.span.upto for part, _ in parts], list(range(100, 1001, 100)))

    def test_split_ends_whatever_the_statistics_say(self) -> None:
        ranges = WriterRanges.between(PositionVector(), PositionVector({}, 2**60))
        parts = [
            part.span for part, _ in split_evenly(ranges, 10, lambda part: 10**9, lambda span: span)
        ]
        self.assertLessEqual(len(parts), MAX_PARTS)
        self.assertEqual((parts[0].after, parts[-1].upto), (0, 2**60))
        self.assertEqual([part.upto for part in parts[:-1]], [part.after for part in parts[1:]])

    @given(vectors, vectors, tokens)
    def test_a_capped_position_has_no_higher_tokens(
        self, start: PositionVector, end: PositionVector, token: int
    ) -> None:
        stop = cap_position(start, end, token)
        self.assertEqual(
            wanted(start, stop), {pair for pair in wanted(start, end) if pair[1] <= token}
        )

    @given(vectors, vectors, st.lists(tokens))
    def test_continuing_at_capped_positions_reads_each_token_once(
        self, start: PositionVector, end: PositionVector, stops: list[int]
    ) -> None:
        at, read = start, Counter[Pair]()
        for token in [*stops, HIGHEST]:
            stop = cap_position(at, end, token)
            read += counted(WriterRanges.between(at, stop).parts())
            at = PositionVector.from_json(stop.to_json()) if "o'b" not in stop.writers else stop
        self.assertEqual(read, Counter(wanted(start, end)))

    @given(st.lists(vectors, min_size=2, max_size=5))
    def test_tokens_up_to_advancing_bounds_are_read_once(self, seen: list[PositionVector]) -> None:
        at, read = seen[0], Counter[Pair]()
        for bound in seen[1:]:
            moved = at.merge(bound)
            read += counted(WriterRanges.between(at, moved).parts())
            at = moved
        self.assertEqual(read, Counter(wanted(seen[0], at)))


class WriterRangesInSql(PostgresCase):
    """The same conditions, evaluated by Postgres."""

    def test_postgres_selects_what_the_model_selects(self) -> None:
        connection = self.connect()
        self.sql(
            "CREATE TEMPORARY TABLE pairs AS SELECT token AS stream_id, writer"
            " FROM generate_series(-20, 20) AS token, unnest(%s) AS writer",
            list(WRITERS),
            on=connection,
        )

        @given(vectors, vectors, st.tuples(tokens, tokens), st.booleans())
        def check(
            start: PositionVector, end: PositionVector, clip: tuple[int, int], down: bool
        ) -> None:
            whole = WriterRanges.between(start, end)
            for ranges in (whole, whole.within(Range(min(clip), max(clip))), *whole.parts()):
                condition = in_ranges(StreamSchema("s", down, ()), ranges, ids(ranges.span, down))
                with connection.cursor() as cursor:
                    cursor.execute(f"SELECT writer, stream_id FROM pairs WHERE {condition}")
                    found = cursor.fetchall()
                sign = -1 if down else 1
                self.assertEqual(
                    Counter((writer, sign * id_) for writer, id_ in found),
                    Counter(inside(ranges)),
                )

        check()
