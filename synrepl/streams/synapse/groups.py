"""Membership of groups (communities)."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Json, Row


class GroupsRow(Row, frozen=True):
    """Something about a user in a group has changed."""

    group_id: str
    user_id: str
    type: str
    content: Json


GROUPS = Stream("groups", {UNTAGGED: GroupsRow}, generations=Generation.until(Generation.MODERN))
