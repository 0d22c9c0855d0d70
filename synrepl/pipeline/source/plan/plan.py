"""From where readers are to where they may go: the chunks in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.plan.chunk import Chunk
from synrepl.pipeline.source.plan.split import split
from synrepl.pipeline.source.plan.windows import Windows, stop_at
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Trimmed

#: Rows that one task reads. Memory does not depend on it: rows are read as they come.
CHUNK_ROWS = 500_000

Vectors = Mapping[str, PositionVector]


def chunks(
    origin: SourceDatabase,
    start: Vectors,
    end: Vectors,
    columns: Mapping[str, Sequence[str]],
    rows: int = CHUNK_ROWS,
    also: str = "",
) -> Iterator[Chunk]:
    """What lies between two positions, in parts of about ``rows`` rows, stream by stream.

    :param columns: by stream, which to read
    :param also: a condition on columns, in SQL
    """
    for stream, upto in end.items():
        for windows in Windows.between(start.get(stream, PositionVector()), upto).parts():
            if windows.empty:
                continue
            estimate, occupied = partial(origin.rows, stream), partial(origin.occupied, stream)
            for part, expected in split(windows, rows, estimate, occupied):
                yield Chunk(
                    stream,
                    *part.clip,
                    origin.scan(stream, part, columns[stream], also),
                    origin.raw(stream, part),
                    origin.reached_sql(),
                    origin.trimmed_sql(stream),
                    expected,
                )


def bounded(
    origin: SourceDatabase, start: Vectors, end: Vectors, rows: int
) -> dict[str, PositionVector]:
    """The position up to ``end`` before which there are about ``rows`` rows, shared by the streams.

    Facts are never split, so one alone may have more.
    """
    share = max(1, rows // max(1, len(end)))
    found = {}
    for stream, upto in end.items():
        since = start.get(stream, PositionVector())
        windows = Windows.between(since, upto)
        token = None if windows.empty else origin.nth(stream, windows, share)
        found[stream] = upto if token is None else stop_at(since, upto, token)
    return found


def check_not_trimmed(stream: str, start: PositionVector, trimmed: int) -> None:
    """Refuse a start from which facts are gone.

    :raises Trimmed: some that were to come next are
    """
    after = min([start.linear, *(start[writer] for writer in start.writers)])
    if trimmed > after:
        raise Trimmed(stream=stream, trimmed=trimmed, after=after)
