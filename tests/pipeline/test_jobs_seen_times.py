"""When tokens were seen, by watermarks: the ranges for Spark's join, against a plain search."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from unittest import TestCase

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.pipeline.jobs.seen_times import SeenTimes, seen_times
from synrepl.pipeline.lake import watermarks as lake_marks

Marks = list[tuple[str, int, int]]
"""Stream, token, and the time in ms."""

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TOKENS = st.one_of(st.integers(0, 60), st.integers(0, 1 << 62))
TIMES = st.one_of(st.integers(0, 20), st.integers(0, 10_000_000))
MARKS = st.lists(st.tuples(st.sampled_from(("events", "caches")), TOKENS, TIMES), max_size=30)


def table(marks: Marks) -> pa.Table:
    rows = [{"stream": s, "token": token, "at": _EPOCH + at * _MS} for s, token, at in marks]
    return pa.Table.from_pylist(rows, schema=lake_marks.SCHEMA)


def joined(known: SeenTimes, stream: str, token: int) -> list[int]:
    """The result of the join for a row."""
    if stream not in known.widths:
        return []
    slot = token // known.widths[stream]
    return [
        span["seen_ms"]
        for span in known.spans.to_pylist()
        if (span["stream"], span["slot"]) == (stream, slot)
        and span["after"] < token <= span["upto"]
    ]


def searched(marks: Marks, stream: str, token: int) -> list[int]:
    """The time of the first mark at or above a token; None without an earlier mark below it."""
    own = [(upto, at) for name, upto, at in marks if name == stream]
    times = [at for upto, at in own if upto >= token]
    looked_before = any(upto < token and at < min(times, default=0) for upto, at in own)
    return [min(times)] if times and looked_before else []


class SeenTimesTest(TestCase):
    @given(MARKS, st.data())
    @settings(max_examples=300, deadline=None)
    def test_the_join_finds_what_a_search_finds(self, marks: Marks, data: st.DataObject) -> None:
        known = seen_times(table(marks))
        near = [token + step for _, token, _ in marks for step in (-1, 0, 1) if token + step > 0]
        for token in {*near, data.draw(TOKENS)}:
            for stream in ("events", "caches"):
                self.assertEqual(
                    joined(known, stream, token), searched(marks, stream, token), (stream, token)
                )

    @given(MARKS)
    @settings(max_examples=200, deadline=None)
    def test_there_are_about_as_many_spans_as_marks(self, marks: Marks) -> None:
        lines = Counter(span["stream"] for span in seen_times(table(marks)).spans.to_pylist())
        of = Counter(stream for stream, _, _ in marks)
        for stream, count in lines.items():
            self.assertLessEqual(count, 4 * of[stream])

    def test_tokens_before_the_first_mark_are_unknown(self) -> None:
        known = seen_times(table([("events", 100, 60_000), ("events", 200, 120_000)]))
        self.assertEqual(
            [joined(known, "events", token) for token in (1, 100, 101, 200, 201)],
            [[], [], [120_000], [120_000], []],
        )

    def test_a_slot_has_few_ranges_where_marks_are_evenly_spaced(self) -> None:
        known = seen_times(table([("events", 1000 + 70 * n, n) for n in range(500)]))
        in_slot = Counter(span["slot"] for span in known.spans.to_pylist())
        self.assertLessEqual(max(in_slot.values()), 2)

    def test_a_single_mark_dates_nothing(self) -> None:
        self.assertEqual(seen_times(table([("events", 100, 60_000)])).widths, {})
        self.assertEqual(seen_times(table([])).spans.num_rows, 0)

    def test_too_many_marks_are_thinned_to_the_last_of_each_interval(self) -> None:
        every_minute: Marks = [("events", 10 * n, 60_000 * n) for n in range(1000)]
        known = seen_times(table(every_minute), most=300)
        times = sorted({span["seen_ms"] // 60_000 for span in known.spans.to_pylist()})
        self.assertEqual(times, [*range(3, 1000, 4)])
        for token in (1, 29, 30, 31, 5000, 9990):
            exact, late = searched(every_minute, "events", token), joined(known, "events", token)
            self.assertLessEqual(exact[0], late[0])
            self.assertLess(late[0] - exact[0], 4 * 60_000)
        self.assertEqual(joined(known, "events", 9991), [])
