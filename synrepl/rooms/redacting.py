"""What is left of an event when it is redacted.

Sources: https://spec.matrix.org/v1.16/rooms/v12/#redactions, and the same section of each version before.
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

#: Beside ``signatures``.
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
    """The redacted form of an event, in federation format; what was given is not changed.

    Where there is no content, or it is no object, it becomes an empty one, as by the reference.
    """
    kept = signed_part(fields, version)
    if "signatures" in fields:
        kept["signatures"] = fields["signatures"]
    return kept


def signed_part(fields: Json, version: RoomVersion) -> dict[str, Any]:
    """The redacted form without ``signatures``: what servers sign, and what the reference hash is of."""
    keys, contents = _rules(version)
    kept = dict(fields)
    kept.pop("signatures", None)
    kept.pop("unsigned", None)
    if not keys.issuperset(kept):  # there is more to drop than always
        for key in kept.keys() - keys:
            del kept[key]
    kind, content = kept.get("type"), kept.get("content")
    keep = contents.get(kind) if isinstance(kind, str) else None
    kept["content"] = {} if keep is None or not isinstance(content, dict) else keep(content)
    return kept


@cache
def _rules(version: RoomVersion) -> tuple[frozenset[str], Mapping[str, Keep]]:
    """The keys that stay and are signed, and by type what stays of content."""
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
        for key in keys:  # half the time of a comprehension, for so few
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
