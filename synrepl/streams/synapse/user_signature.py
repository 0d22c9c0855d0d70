"""Cross-signing signatures."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row


class UserSignatureRow(Row, frozen=True):
    """A user has signed other users' keys."""

    user_id: str


USER_SIGNATURE = Stream(
    "user_signature",
    {UNTAGGED: UserSignatureRow},
    generations=Generation.since(Generation.LEGACY) & Generation.until(Generation.MODERN),
    numbered_with="device_lists",
)
