"""Reference results of the jobs, computed from the same rows without Spark and without their code."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from tests.pipeline.synthetic_lake import Rows

#: The rows of the lake, by stream.
Streams = Mapping[str, Rows]

#: Stream, token, and the time in seconds since the epoch.
Marks = list[tuple[str, int, float]]


class Line(NamedTuple):
    """One row."""

    stream: str
    writer: str
    room: str | None
    user: str | None
    at: int | None
    seen: int | None
    row: Mapping[str, Any]

    @property
    def day(self) -> date | None:
        ms = self.seen if self.at is None else self.at
        return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).date()


def lines(streams: Streams, marks: Marks) -> Iterator[Line]:
    """All rows."""
    for stream, rows in streams.items():
        for row in rows:
            seen = _seen(marks, stream, abs(row["stream_id"]))
            writer = row.get("writer", "w")
            yield Line(stream, writer, _room(stream, row), _user(row), _at(stream, row), seen, row)


def _seen(marks: Marks, stream: str, token: int) -> int | None:
    own = sorted((upto, round(at * 1000)) for name, upto, at in marks if name == stream)
    if not own or token <= own[0][0]:
        return None
    return next((at for upto, at in own if upto >= token), None)


def _room(stream: str, row: Mapping[str, Any]) -> str | None:
    if stream == "caches":
        fake = row["cache_func"].endswith("_cache_fake")
        return json.loads(row["keys"])[0] if fake and row.get("keys") else None
    return row.get("room_id")


def _user(row: Mapping[str, Any]) -> str | None:
    if row.get("type") == "m.room.member":
        return row["state_key"]
    entity = row.get("entity")
    return entity if entity and entity.startswith("@") else row.get("user_id", row.get("sender"))


def _at(stream: str, row: Mapping[str, Any]) -> int | None:
    if stream == "caches":
        return row["invalidation_ts"]
    if stream == "receipts":
        at = json.loads(row["data"]).get("ts")
        return at if isinstance(at, int) and 0 < at < 250_000_000_000_000 else None
    if stream == "presence":
        names = ("last_active_ts", "last_federation_update_ts", "last_user_sync_ts")
        return max(row.get(name) or 0 for name in names) or None
    return None


def activity(found: list[Line]) -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """Numbers of rows, rooms and users by day, stream and writer."""
    groups: dict[Any, list[Line]] = defaultdict(list)
    for line in found:
        groups[line.day, line.stream, line.writer].append(line)
    return {
        key: (
            len(each),
            len({line.room for line in each} - {None}),
            len({line.user for line in each} - {None}),
        )
        for key, each in groups.items()
    }


def lag(found: list[Line]) -> dict[tuple[Any, ...], tuple[int, int, float | None]]:
    """Numbers of rows and of unseen rows, and the largest lag, by hour, stream and writer."""
    groups: dict[Any, list[Line]] = defaultdict(list)
    for line in found:
        if line.at is not None and line.stream in ("caches", "receipts"):
            groups[line.at // 3_600_000, line.stream, line.writer].append(line)
    return {
        key: (
            len(each),
            sum(line.seen is None for line in each),
            max(((line.seen - line.at) / 1000 for line in each if line.seen), default=None),
        )
        for key, each in groups.items()
    }


def rooms(found: list[Line]) -> dict[tuple[str, date | None], int]:
    """Number of rows by room and day."""
    return Counter((line.room, line.day) for line in found if line.room is not None)


def skew(found: list[Line]) -> dict[str, tuple[int, int, float, float, float]]:
    """By stream: rooms, rows, the share of the largest room, that of ten, and the Gini coefficient."""
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for line in found:
        if line.room is not None:
            sizes[line.stream][line.room] += 1
    answer = {}
    for stream, counts in sizes.items():
        x = sorted(counts.values(), reverse=True)
        n, total = len(x), sum(x)
        # The definition: half the mean difference, relative to the mean.
        gini = sum(abs(a - b) for a in x for b in x) / (2 * n * total)
        answer[stream] = (n, total, x[0] / total, sum(x[:10]) / total, gini)
    return answer


def heat(found: list[Line]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Numbers of invalidations, and of those of a whole cache, by hour, cache and writer."""
    groups: dict[Any, list[Line]] = defaultdict(list)
    for line in found:
        if line.stream == "caches":
            groups[line.at // 3_600_000, line.row["cache_func"], line.writer].append(line)
    return {
        key: (len(each), sum(line.row.get("keys") is None for line in each))
        for key, each in groups.items()
    }
