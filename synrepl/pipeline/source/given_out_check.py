"""Checks whether a database will give out tokens again that a reader has read already.

A database that is set back on the same timeline does: an earlier copy of its data directory that is
started, a dump that is restored in the same server, or a sequence that is set back. The reader would
skip the facts that get these tokens, as it has read up to there.
"""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.core.tokens import Token
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SafeBound


def streams_set_back(
    positions: Mapping[str, PositionVector],
    bounds: Mapping[str, SafeBound],
    source: SourceDatabase,
) -> dict[str, Token]:
    """The streams of which a reader has tokens that the database has not given out, with the last one that it has.

    Whether a stream is one of them is certain: a standby that is behind is none, and neither is a
    stream of which nothing tells what it has given out.

    :param positions: of the reader, by stream; read before this is called
    :param bounds: by stream, how far it may be read; they may be older than the positions
    """
    suspects = [
        stream
        for stream, at in positions.items()
        if stream in bounds and at.highest > bounds[stream].last
    ]
    if not suspects:
        return {}
    return {
        stream: last
        for stream, last in source.given_out(suspects).items()
        if positions[stream].highest > last
    }


def in_words(streams: Mapping[str, Token], positions: Mapping[str, PositionVector]) -> str:
    """Describe the result of :func:`streams_set_back` for a message."""
    return "; ".join(
        f"stream {stream!r} up to {last}, which was read up to {positions[stream].highest}"
        for stream, last in sorted(streams.items())
    )
