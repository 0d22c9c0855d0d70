"""Identifiers of users, rooms, events and servers: their grammar and limits.

Source: https://spec.matrix.org/v1.16/appendices/#common-identifier-format. User IDs follow the
historical grammar, which the specification requires servers to accept in rooms; only new users follow
the narrow one. This grammar applies to received events. Of auth rules,
:func:`is_user_id` checks only what every server checks, because a server that refused power levels over
a user ID that others accept would see a different room; :func:`server_part` refuses nothing, as Synapse
does.
"""

from __future__ import annotations

import re
from typing import TypeGuard

from synrepl.core.errors import InputError
from synrepl.rooms.versions import EventIds, RoomVersion

#: Maximum length of an identifier in bytes, sigil and server included.
MAX_ID_BYTES = 255

_SERVER = re.compile(
    r"(?:[0-9A-Za-z.-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])"  # a DNS name or IPv4 address, an IPv6 address
    r"(?::[0-9]{1,5})?"
)
_NEW_LOCALPART = re.compile(r"[a-z0-9._=/+-]+")
_HASH = re.compile(r"[0-9A-Za-z+/]{43}")
_URL_SAFE_HASH = re.compile(r"[0-9A-Za-z_-]{43}")

_SHOWN = 80


class BadIdentifier(InputError):
    """{text!r} is no {kind}: {reason}"""


def server_of(identifier: str) -> str:
    """The server name in an identifier: everything after the first colon. The rest is not validated.

    :raises BadIdentifier: there is no colon, or nothing after it
    """
    server = identifier.partition(":")[2]
    if not server:
        raise _bad(identifier, "identifier with a server", "no server follows a colon")
    return server


def check_server_name(text: str) -> None:
    """Check a server name: https://spec.matrix.org/v1.16/appendices/#server-name

    :raises BadIdentifier: it is malformed
    """
    _check_server(text, text, "server name")


def check_user_id(text: str) -> None:
    """Check a user ID: https://spec.matrix.org/v1.16/appendices/#historical-user-ids

    :raises BadIdentifier: it is malformed
    """
    _check_with_server(text, "@", "user ID")


def check_new_user_id(text: str) -> None:
    """Check the ID of a new user: https://spec.matrix.org/v1.16/appendices/#user-identifiers

    :raises BadIdentifier: it is malformed
    """
    localpart = _check_with_server(text, "@", "user ID")
    if not _NEW_LOCALPART.fullmatch(localpart):
        raise _bad(
            text, "new user ID", "its local part has other characters than a-z 0-9 . _ = - / +"
        )


def check_room_id(text: str, version: RoomVersion) -> None:
    """Check a room ID: https://spec.matrix.org/v1.16/appendices/#room-ids

    :raises BadIdentifier: it is malformed
    """
    if version.room_id_is_create_hash:
        _check_hash(text, "!", "room ID", _URL_SAFE_HASH)
    else:
        _check_with_server(text, "!", "room ID")


def check_event_id(text: str, version: RoomVersion) -> None:
    """Check an event ID: https://spec.matrix.org/v1.16/appendices/#event-ids

    :raises BadIdentifier: it is malformed
    """
    if version.event_ids is EventIds.GIVEN:
        _check_with_server(text, "$", "event ID")
    elif version.event_ids is EventIds.HASH:
        _check_hash(text, "$", "event ID", _HASH)
    else:
        _check_hash(text, "$", "event ID", _URL_SAFE_HASH)


def _check_with_server(text: str, sigil: str, kind: str) -> str:
    """Check an identifier with a server name; returns its local part."""
    _check_start(text, sigil, kind)
    local, colon, server = text[1:].partition(":")
    if not colon:
        raise _bad(text, kind, "no server follows a colon")
    if "\0" in local or not _is_unicode(local):
        raise _bad(text, kind, "it has NUL or half a surrogate pair in it")
    _check_server(server, text, kind)
    if len(text.encode()) > MAX_ID_BYTES:
        raise _bad(text, kind, f"it has more than {MAX_ID_BYTES} bytes")
    return local


def _check_hash(text: str, sigil: str, kind: str, grammar: re.Pattern[str]) -> None:
    _check_start(text, sigil, kind)
    if not grammar.fullmatch(text, 1):
        raise _bad(text, kind, "after its first character there is no SHA-256 in unpadded Base64")


def _check_start(text: str, sigil: str, kind: str) -> None:
    if not text.startswith(sigil):
        raise _bad(text, kind, f"it does not start with {sigil}")


def _check_server(server: str, text: str, kind: str) -> None:
    if not _SERVER.fullmatch(server):
        raise _bad(text, kind, "the server's name is no host name or address with an optional port")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


def _bad(text: str, kind: str, reason: str) -> BadIdentifier:
    return BadIdentifier(text=text[:_SHOWN], kind=kind, reason=reason)


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
