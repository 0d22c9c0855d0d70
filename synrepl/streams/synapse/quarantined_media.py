"""Media put into quarantine and taken out of it."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row


class QuarantinedMediaRow(Row, frozen=True):
    """A piece of media was put into quarantine, or taken out.

    :ivar origin: the server it comes from; None for this one
    """

    origin: str | None
    media_id: str
    quarantined: bool


QUARANTINED_MEDIA = Stream(
    "quarantined_media",
    {UNTAGGED: QuarantinedMediaRow},
    generations=Generation.since(Generation.CURRENT),
)
