"""The error for an unknown stream, with the closest known name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from synrepl.pipeline.database.source_database import NoSuchStream


def no_such_stream(name: str, streams: Sequence[str]) -> NoSuchStream:
    """The error for a stream that is not in the database."""
    near = difflib.get_close_matches(name[:100], streams, n=1)
    return NoSuchStream(
        stream=name[:100],
        hint=f"; did you mean {near[0]!r}?" if near else "",
        streams=", ".join(streams) or "none",
    )
