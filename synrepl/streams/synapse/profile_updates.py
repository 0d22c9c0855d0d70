"""Changes to users' profiles.

Only a server with ``include_profile_updates_in_sync`` in its configuration sends any.
"""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Json, Row


class ProfileUpdatesRow(Row, frozen=True):
    """A user's profile has changed.

    :ivar action: what was done; ``update`` where fields were set or removed
    :ivar affected_fields: their names
    """

    user_id: str
    action: str
    affected_fields: list[Json] | None


PROFILE_UPDATES = Stream(
    "profile_updates",
    {UNTAGGED: ProfileUpdatesRow},
    generations=Generation.since(Generation.CURRENT),
)
