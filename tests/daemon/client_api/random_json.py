"""JSON of any kind, with the names that the endpoints know."""

from __future__ import annotations

from random import Random
from typing import Any

_KEYS = (
    *("type", "state_key", "content", "membership", "user_id", "room_id", "name", "topic"),
    *("invite", "preset", "initial_state", "creation_content", "room_version", "users", "events"),
    *("power_level_content_override", "join_rule", "allow", "identifier", "password", "user"),
    *("new_version", "reason", "third_party_invite", "signed", "join_authorised_via_users_server"),
    *("messages", "*", "thread_id", "typing", "timeout", "presence", "status_msg", "order", "tags"),
    *("m.read", "m.read.private", "m.fully_read", "ignored_users"),
    *("room_alias_name", "additional_creators", "users_default", "is_direct", "m.federate"),
)
_TEXTS = (
    *("", "a", "\0", "é" * 300, "@bob:example.com", "!a:example.com", "$x", "12", "1", "99"),
    *("m.room.create", "m.room.member", "join", "leave", "public_chat", "restricted", "\u2028"),
    *("online", "unavailable", "offline", "main"),
    *("m.login.password", "m.login.token", "m.id.user", "syn_a_1_b"),
)


def random_json(rng: Random, depth: int = 0) -> Any:
    """A JSON value; an object at the top."""
    kind = rng.randrange(9) if depth else 0
    if kind < 3 and depth < 5:
        return {
            rng.choice(_KEYS + _TEXTS): random_json(rng, depth + 1) for _ in range(rng.randrange(8))
        }
    if kind < 4 and depth < 5:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    return rng.choice((*_TEXTS, None, True, False, 0, 1, -1, 100, 2**53, 2**70, 1.5, -0.0, 1e300))
