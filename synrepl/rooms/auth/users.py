"""User IDs, as far as the auth rules look into them.

Source: https://spec.matrix.org/v1.16/appendices/#user-identifiers. The grammar of
:mod:`synrepl.rooms.identifiers` is for what comes in. Here, only what every server looks at counts:
who refused power levels for a user ID that others let pass would see another room than they.
"""

from __future__ import annotations

from typing import TypeGuard

from synrepl.rooms.identifiers import MAX_ID_BYTES


def server_part(identifier: str) -> str:
    """The server in an ID such as ``@user:server``; empty when there is none."""
    return identifier.partition(":")[2]


def is_user_id(value: object) -> TypeGuard[str]:
    """Whether it is text, begins with ``@``, names a server and is not too long."""
    return (
        isinstance(value, str)
        and value[:1] == "@"
        and server_part(value) != ""
        and len(value.encode(errors="replace")) <= MAX_ID_BYTES
    )
