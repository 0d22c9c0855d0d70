"""Presence to be sent to other servers.

In recordings of 1.43 it starts again at 0 with its writer, and there is no table for
it: it is kept in memory.
"""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row


class PresenceFederationRow(Row, frozen=True):
    """A user's presence is to be sent to another server."""

    destination: str
    user_id: str


PRESENCE_FEDERATION = Stream(
    "presence_federation",
    {UNTAGGED: PresenceFederationRow},
    in_memory=True,
    generations=Generation.since(Generation.MODERN),
)
