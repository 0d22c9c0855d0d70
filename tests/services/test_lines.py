"""Encoded lines agree with a naive model, and can be parsed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.services.announcing.lines import CHUNK_BYTES, Audience, LineEncoder
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Fact, Generation
from synrepl.streams.rows import RowCodec
from synrepl.wire.codec import parse_line
from synrepl.wire.commands import Position, Rdata
from synrepl.wire.dialects import LEGACY, MODERN, Dialect, Side
from synrepl.wire.lines import LineChunk

JOBS = declare("jobs", {"name": "text"})
ROW = JOBS.kinds[UNTAGGED]
LIMIT = 256
SOME = settings(max_examples=120, deadline=None)

#: Facts as (step from the token before, lengths of the names in their rows).
shapes = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.integers(0, 8) | st.just(LIMIT), max_size=4)),
    max_size=12,
)


def facts_of(shapes: list[tuple[int, list[int]]], after: int) -> list[Fact]:
    tokens = accumulate((step for step, _ in shapes), initial=after)
    next(tokens)
    return [
        Fact(token, "w", tuple(ROW("x" * length) for length in lengths))
        for token, (_, lengths) in zip(tokens, shapes, strict=True)
    ]


def encoder(dialect: Dialect, limit: int = LIMIT) -> LineEncoder:
    audience = Audience(dialect, Generation.MODERN, limit)
    return LineEncoder(audience, {JOBS.name: RowCodec(JOBS)})


def commands(chunks: Sequence[LineChunk], dialect: Dialect) -> Iterator[Rdata | Position]:
    for chunk in chunks:
        for line in chunk.data.splitlines():
            command = parse_line(line, dialect, Side.SERVER)
            assert isinstance(command, (Rdata, Position))
            yield command


def fits(fact: Fact) -> bool:
    return all(len(row.name) < LIMIT for row in fact.rows)  # type: ignore[attr-defined]


class Encoding(TestCase):
    def check(self, chunks: list[LineChunk], limit: int = LIMIT) -> None:
        for chunk in chunks:
            self.assertEqual(chunk, LineChunk.of(chunk.data))
            self.assertTrue(chunk.lines and chunk.longest <= limit)

    @SOME
    @given(shapes, st.integers(0, 2))
    def test_encodes_live_rows_and_positions(
        self, shapes: list[tuple[int, list[int]]], beyond: int
    ) -> None:
        facts = facts_of(shapes, after=5)
        new = max([fact.token for fact in facts], default=5) + beyond
        chunks = list(encoder(MODERN).live(JOBS, "w", 5, new, facts))
        self.check(chunks)
        parsed = list(commands(chunks, MODERN))
        rows = [c for c in parsed if isinstance(c, Rdata)]
        wanted = [
            (fact.token if number == len(fact.rows) else None, b'["%b"]' % row.name.encode())  # type: ignore[attr-defined]
            for fact in facts
            if fits(fact)
            for number, row in enumerate(fact.rows, 1)
        ]
        self.assertEqual([(c.token, c.row) for c in rows], wanted)
        # A client that has received all of it is at the new position.
        last = parsed[-1] if parsed else None
        reached = last.new if isinstance(last, Position) else last.token if last else 5
        self.assertEqual(reached, new)
        positions = {c.new for c in parsed if isinstance(c, Position)}
        self.assertLessEqual({f.token for f in facts if f.rows and not fits(f)}, positions)

    @SOME
    @given(shapes)
    def test_catch_up_repeats_the_token_and_leaves_out_what_is_too_long(
        self, shapes: list[tuple[int, list[int]]]
    ) -> None:
        facts = facts_of(shapes, after=0)
        chunks = list(encoder(LEGACY).catch_up(JOBS, facts))
        self.check(chunks)
        parsed = [(c.token, c.row) for c in commands(chunks, LEGACY) if isinstance(c, Rdata)]
        wanted = [
            (fact.token, b'["%b"]' % row.name.encode())  # type: ignore[attr-defined]
            for fact in facts
            if all(len(row.name) < LIMIT for row in fact.rows)  # type: ignore[attr-defined]
            for row in fact.rows
        ]
        self.assertEqual(parsed, wanted)

    def test_cuts_many_lines_near_the_size_of_a_chunk(self) -> None:
        facts = [Fact(token, "w", (ROW("x" * 1000),) * 2) for token in range(2, 602)]
        for dialect in (MODERN, LEGACY):
            with self.subTest(dialect.name):
                encode = encoder(dialect, limit=16_384)
                writer = "w" if dialect is MODERN else ""
                chunks = list(encode.live(JOBS, writer, 1, 601, facts))
                self.check(chunks, limit=16_384)
                self.assertEqual(sum(chunk.lines for chunk in chunks), 1200)
                self.assertLess(max(len(chunk.data) for chunk in chunks), 2 * CHUNK_BYTES)
                self.assertLess(len(chunks), 30)
