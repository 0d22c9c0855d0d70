"""User IDs as the auth rules read them.

Source: https://spec.matrix.org/v1.16/appendices/#user-identifiers. The grammar of
:mod:`synrepl.rooms.identifiers` applies to received events. Here only what every server checks counts:
a server that refused power levels over a user ID that others accept would see a different room.
"""

from __future__ import annotations

from typing import TypeGuard

from synrepl.rooms.identifiers import MAX_ID_BYTES


def server_part(identifier: str) -> str:
    """The server in an ID such as ``@user:server``; empty when there is none."""
    return identifier.partition(":")[2]


def is_user_id(value: object) -> TypeGuard[str]:
    """Whether a value is text that begins with ``@``, names a server and is within the length limit."""
    return (
        isinstance(value, str)
        and value[:1] == "@"
        and server_part(value) != ""
        and len(value.encode(errors="replace")) <= MAX_ID_BYTES
    )
