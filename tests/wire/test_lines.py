from __future__ import annotations

from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.wire.lines import (
    DEFAULT_LINE_LIMIT,
    MAX_LINE_LIMIT,
    BadLineLimit,
    LineChunk,
    LineSplitter,
    LineTooLong,
)


class LineSplitterTests(TestCase):
    def test_splits_lines_and_keeps_the_rest(self) -> None:
        splitter = LineSplitter()
        self.assertEqual(splitter.feed(b"a\nb\n\nc"), [b"a", b"b", b""])
        self.assertEqual(splitter.partial_length, 1)
        self.assertEqual(splitter.feed(b"d"), [])
        self.assertEqual(splitter.feed(b"\r\n"), [b"cd\r"])
        self.assertEqual(splitter.partial_length, 0)

    def test_the_limit_itself_is_accepted(self) -> None:
        longest = b"x" * DEFAULT_LINE_LIMIT
        self.assertEqual(LineSplitter().feed(longest + b"\n"), [longest])
        for size in (1, 7, DEFAULT_LINE_LIMIT):
            splitter = LineSplitter()
            for start in range(0, len(longest), size):
                self.assertEqual(splitter.feed(longest[start : start + size]), [])
            self.assertEqual(splitter.feed(b"\n"), [longest])

    def test_one_byte_more_is_refused_with_and_without_a_newline(self) -> None:
        longest = b"x" * DEFAULT_LINE_LIMIT
        for pieces in ([longest + b"x\n"], [longest + b"x"], [longest, b"x"], [longest, b"x\n"]):
            splitter = LineSplitter()
            with self.assertRaises(LineTooLong) as caught:
                for piece in pieces:
                    splitter.feed(piece)
            self.assertIn("16384", str(caught.exception))

    def test_lines_before_the_long_one_come_with_the_error(self) -> None:
        for tail in (b"\nlater\n", b""):
            with self.assertRaises(LineTooLong) as caught:
                LineSplitter(256).feed(b"a\nb\n" + b"x" * 300 + tail)
            self.assertEqual(caught.exception.before, [b"a", b"b"])

    def test_does_not_buffer_a_line_that_is_too_long(self) -> None:
        splitter = LineSplitter()
        with self.assertRaises(LineTooLong):
            splitter.feed(b"A" * 1_000_000)
        self.assertEqual(splitter.partial_length, 0)

    def test_refuses_to_be_without_a_limit(self) -> None:
        for limit in (0, -1, 255, MAX_LINE_LIMIT + 1, None, True, 1e9):
            with self.assertRaises(BadLineLimit):
                LineSplitter(limit)  # type: ignore[arg-type]

    @given(st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\n"])).map(b"".join)))
    def test_the_result_does_not_depend_on_how_bytes_are_cut(self, pieces: list[bytes]) -> None:
        splitter = LineSplitter()
        lines = [line for piece in pieces for line in splitter.feed(piece)]
        *whole, rest = b"".join(pieces).split(b"\n")
        self.assertEqual(lines, whole)
        self.assertEqual(splitter.partial_length, len(rest))


class LineChunkTests(TestCase):
    def test_a_chunk_knows_its_lines_and_its_longest_one(self) -> None:
        self.assertEqual(LineChunk.of(b"ab\nabc\n"), LineChunk(b"ab\nabc\n", 2, 3))
        self.assertEqual(LineChunk.of(b"").lines, 0)
        self.assertEqual(LineChunk.of(b"a\nbcd").longest, 3)
