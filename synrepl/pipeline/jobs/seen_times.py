"""Watermarks as ranges of tokens, arranged so that Spark can join rows to them by equality.

A join by comparison alone would compare every row with every watermark. So tokens are divided into
slots, about as many as there are watermarks, and a range is listed in each slot that it touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

#: Maximum number of watermarks used, as each executor gets all of them. If there are more, only the
#: last of every two minutes are used, or of every four, …, and rows seem to be seen that much later.
MAX_MARKS = 500_000

_MINUTE_MS = 60_000

SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("after", pa.int64(), nullable=False),
        pa.field("upto", pa.int64(), nullable=False),
        pa.field("seen_ms", pa.int64(), nullable=False),
    ]
)


class SeenTimes(NamedTuple):
    """When tokens were first seen.

    :ivar widths: by stream, the number of tokens in a slot; without streams of unknown times
    :ivar spans: one row per range ``(after, upto]`` and slot that it touches, with the time at which
        its tokens were first seen, in ms since the epoch; see :data:`SCHEMA`
    """

    widths: Mapping[str, int]
    spans: pa.Table


class _StreamMarks(NamedTuple):
    """The watermarks of one stream, in ascending order of tokens; times do not decrease."""

    tokens: np.ndarray
    at_ms: np.ndarray


def seen_times(marks: pa.Table, most: int = MAX_MARKS) -> SeenTimes:
    """The ranges between watermarks.

    Tokens at or below a stream's first watermark existed before the first observation, so their
    time is unknown. A token was seen at the earliest time of any watermark at or above it.

    :param marks: see :meth:`.Watermarks.table`
    :param most: maximum number of watermarks used
    """
    lines = _lines(marks)
    interval_ms = _MINUTE_MS
    while sum(len(line.tokens) for line in lines.values()) > most and interval_ms < 1 << 62:
        interval_ms *= 2
        lines = {stream: _thinned(line, interval_ms) for stream, line in lines.items()}
    widths = {}
    tables = [SCHEMA.empty_table()]
    for stream, (tokens, at_ms) in sorted(lines.items()):
        ranges = len(tokens) - 1
        if ranges < 1:
            continue
        width = max(1, int(tokens[-1] - tokens[0]) // ranges)
        widths[stream] = width
        after, upto = tokens[:-1], tokens[1:]
        first, last = (after + 1) // width, upto // width
        slots = last - first + 1
        which = np.repeat(np.arange(ranges), slots)
        begun = np.cumsum(slots) - slots
        slot = first[which] + np.arange(len(which)) - begun[which]
        columns = [slot, after[which], upto[which], at_ms[1:][which]]
        names = pa.array([stream] * len(which), pa.string())
        tables.append(pa.Table.from_arrays([names, *map(pa.array, columns)], schema=SCHEMA))
    return SeenTimes(widths, pa.concat_tables(tables))


def _lines(marks: pa.Table) -> dict[str, _StreamMarks]:
    names = marks["stream"].to_pylist()
    tokens = marks["token"].to_numpy()
    at_ms = marks["at"].cast(pa.int64()).to_numpy() // 1000
    by_name: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        by_name.setdefault(name, []).append(place)
    return {name: _line(tokens[places], at_ms[places]) for name, places in by_name.items()}


def _line(tokens: np.ndarray, at_ms: np.ndarray) -> _StreamMarks:
    order = np.argsort(tokens, kind="stable")
    tokens, at_ms = tokens[order], at_ms[order]
    # A clock may be set back, and watermarks come from several sources.
    at_ms = np.minimum.accumulate(at_ms[::-1])[::-1]
    last = np.append(at_ms[1:] != at_ms[:-1], True)  # of those with the same time
    return _StreamMarks(tokens[last], at_ms[last])


def _thinned(line: _StreamMarks, interval_ms: int) -> _StreamMarks:
    """The last watermark of each interval, and the very first, as older times are unknown."""
    part = line.at_ms // interval_ms
    keep = np.append(part[1:] != part[:-1], True)
    keep[0] = True
    return _StreamMarks(line.tokens[keep], line.at_ms[keep])
