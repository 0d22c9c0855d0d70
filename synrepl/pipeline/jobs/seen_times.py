"""Marks as ranges of tokens, cut so that Spark finds a row's range by equality.

A comparison alone would be made of every row with every mark. So tokens are divided into
slots, about as many as there are marks, and a range is listed in each slot that it touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

#: So many marks are used, for each executor gets all of them. Of more, the last of each two
#: minutes are, or of each four, …: rows then seem to be seen by that much later.
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
    """When tokens were seen.

    :ivar widths: by stream, the tokens of a slot; not there when none of a stream's were seen
    :ivar spans: tokens in ``(after, upto]``, of which at least one is in the slot, were first
        seen at a time in ms since the epoch; see :data:`SCHEMA`
    """

    widths: Mapping[str, int]
    spans: pa.Table


class _StreamMarks(NamedTuple):
    """One stream's marks, by rising tokens; their times rise too, or are equal."""

    tokens: np.ndarray
    at_ms: np.ndarray


def seen_times(marks: pa.Table, most: int = MAX_MARKS) -> SeenTimes:
    """The ranges between marks.

    What lies at or below a stream's first mark was there before anybody looked, so nothing
    tells when it came. A token is seen at the earliest time of any mark at or above it.

    :param marks: as :meth:`.Marks.table` gives them
    :param most: marks that are used
    """
    lines = _lines(marks)
    apart = _MINUTE_MS
    while sum(len(line.tokens) for line in lines.values()) > most and apart < 1 << 62:
        apart *= 2
        lines = {stream: _thinned(line, apart) for stream, line in lines.items()}
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
    # A clock may go back, and marks come from several places.
    at_ms = np.minimum.accumulate(at_ms[::-1])[::-1]
    last = np.append(at_ms[1:] != at_ms[:-1], True)  # of those with one time
    return _StreamMarks(tokens[last], at_ms[last])


def _thinned(line: _StreamMarks, apart_ms: int) -> _StreamMarks:
    """The last mark of each so many ms, and the first of all: what is before it is unknown."""
    part = line.at_ms // apart_ms
    keep = np.append(part[1:] != part[:-1], True)
    keep[0] = True
    return _StreamMarks(line.tokens[keep], line.at_ms[keep])
