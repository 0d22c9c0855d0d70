"""The redaction algorithm: which fields and content keys a redacted event keeps.

Sources: https://spec.matrix.org/v1.16/rooms/v12/#redactions, and the same section of each earlier version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from synrepl.rooms.event_types import (
    ALIASES,
    AUTHORISING_USER,
    CREATE,
    HISTORY_VISIBILITY,
    JOIN_RULES,
    MEMBER,
    POWER_LEVELS,
    REDACTION,
)
from synrepl.rooms.versions import RoomVersion

#: Fields that redaction keeps in every version, besides ``signatures``.
_ALWAYS = frozenset(
    {
        "event_id",
        "type",
        "room_id",
        "sender",
        "state_key",
        "content",
        "hashes",
        "depth",
        "prev_events",
        "auth_events",
        "origin_server_ts",
    }
)
_UNTIL_UPDATED = frozenset({"membership", "origin", "prev_state"})

_LEVELS = (
    "users",
    "users_default",
    "events",
    "events_default",
    "state_default",
    "ban",
    "kick",
    "redact",
)

Json = Mapping[str, Any]
Keep = Callable[[Json], dict[str, Any]]


def redact(fields: Json, version: RoomVersion) -> dict[str, Any]:
    """The redacted form of an event, in federation format. ``fields`` is not modified.

    Missing content, or content that is not an object, becomes an empty object, as in Synapse.
    """
    kept = signed_part(fields, version)
    if "signatures" in fields:
        kept["signatures"] = fields["signatures"]
    return kept


def signed_part(fields: Json, version: RoomVersion) -> dict[str, Any]:
    """The redacted form without ``signatures``, which servers sign and the reference hash covers."""
    keys, contents = _rules(version)
    kept = dict(fields)
    kept.pop("signatures", None)
    kept.pop("unsigned", None)
    if not keys.issuperset(kept):  # more to drop than ``signatures`` and ``unsigned``
        for key in kept.keys() - keys:
            del kept[key]
    kind, content = kept.get("type"), kept.get("content")
    keep = contents.get(kind) if isinstance(kind, str) else None
    kept["content"] = {} if keep is None or not isinstance(content, dict) else keep(content)
    return kept


@cache
def _rules(version: RoomVersion) -> tuple[frozenset[str], Mapping[str, Keep]]:
    """The fields that redaction keeps, and by event type the function that redacts content."""
    keys = _ALWAYS if version.updated_redaction_rules else _ALWAYS | _UNTIL_UPDATED
    contents: dict[str, Keep] = {
        MEMBER: _member(version),
        CREATE: dict if version.updated_redaction_rules else _only("creator"),
        JOIN_RULES: _only("join_rule", *(["allow"] if version.keeps_allow else [])),
        POWER_LEVELS: _only(*_LEVELS, *(["invite"] if version.updated_redaction_rules else [])),
        HISTORY_VISIBILITY: _only("history_visibility"),
    }
    if version.aliases_are_authorised:
        contents[ALIASES] = _only("aliases")
    if version.redacts_in_content:
        contents[REDACTION] = _only("redacts")
    return keys, contents


def _only(*keys: str) -> Keep:
    def keep(content: Json) -> dict[str, Any]:
        kept = {}
        for key in keys:  # twice as fast as a comprehension, for so few
            if key in content:
                kept[key] = content[key]
        return kept

    return keep


def _member(version: RoomVersion) -> Keep:
    whole = _only("membership", *([AUTHORISING_USER] if version.keeps_authorising_user else []))
    if not version.updated_redaction_rules:
        return whole
    signed_part_of_invite = _only("signed")

    def keep(content: Json) -> dict[str, Any]:
        kept = whole(content)
        invite = content.get("third_party_invite")
        if isinstance(invite, dict):
            kept["third_party_invite"] = signed_part_of_invite(invite)
        return kept

    return keep
