"""Events as clients get them, made of their federation JSON.

Content is copied byte for byte, so numbers and unusual keys stay as they are.

Sources: https://spec.matrix.org/v1.16/client-server-api/#room-event-format,
https://spec.matrix.org/v1.16/client-server-api/#stripped-state, for ``redacts``
https://spec.matrix.org/v1.16/client-server-api/#mroomredaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from synrepl.core.jsons import encode
from synrepl.rooms.event_types import REDACTION
from synrepl.rooms.versions import RoomVersion


class ClientUnsigned(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a server adds to an event for one client.

    :ivar age: milliseconds since the event was sent, by the clocks of two servers
    :ivar transaction_id: of the request with which this device sent the event
    :ivar prev_content: JSON of the content of the state event that this one replaced
    :ivar replaces_state: ID of that event
    :ivar redacted_because: the redaction, as JSON in client format
    :ivar membership: of the user after the event (MSC4115)
    """

    age: int | UnsetType = UNSET
    transaction_id: str | UnsetType = UNSET
    prev_content: Raw | UnsetType = UNSET
    replaces_state: str | UnsetType = UNSET
    redacted_because: Raw | UnsetType = UNSET
    membership: str | UnsetType = UNSET


class ClientForm(NamedTuple):
    """An event as clients get it.

    :ivar state_key: None for a message event
    """

    event_id: str
    type: str
    sender: str
    state_key: str | None
    json: bytes


class _StoredEvent(msgspec.Struct):
    """The fields of an event in federation format that clients get."""

    type: str
    sender: str
    content: Raw
    origin_server_ts: int
    state_key: str | None = None
    redacts: Raw | UnsetType = UNSET


class _ClientEvent(msgspec.Struct):
    """An event as clients get it."""

    type: str
    sender: str
    content: Raw
    origin_server_ts: int
    state_key: str | UnsetType
    redacts: Raw | UnsetType
    event_id: str
    room_id: str | UnsetType
    unsigned: ClientUnsigned | UnsetType


class _StrippedEvent(msgspec.Struct):
    type: str
    state_key: str
    sender: str
    content: Raw


class _Content(msgspec.Struct):
    content: Raw


_EVENT: msgspec.json.Decoder[_StoredEvent] = msgspec.json.Decoder(_StoredEvent)
_NOTHING_BESIDES = ClientUnsigned()
_STRIPPED: msgspec.json.Decoder[_StrippedEvent] = msgspec.json.Decoder(_StrippedEvent)
_CONTENT: msgspec.json.Decoder[_Content] = msgspec.json.Decoder(_Content)
_ENCODER = msgspec.json.Encoder()


def client_form(
    raw: bytes,
    event_id: str,
    version: RoomVersion,
    unsigned: ClientUnsigned | None = None,
    room_id: str | None = None,
) -> ClientForm:
    """Make the client format of an event.

    A redaction has ``redacts`` both in its content and beside it, whatever its version.

    :param raw: the event in federation format, which was parsed before; its redacted form, if no more is to be
        shown
    :param unsigned: what a client gets besides
    :param room_id: None where the room is implied
    """
    event = _EVENT.decode(raw)
    content, redacts = event.content, event.redacts
    if event.type != REDACTION:
        redacts = UNSET
    elif version.redacts_in_content:
        target = msgspec.json.decode(content).get("redacts")
        redacts = Raw(encode(target)) if isinstance(target, str) else UNSET
    elif redacts is not UNSET:
        fields: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Raw])
        fields["redacts"] = redacts
        content = Raw(_ENCODER.encode(fields))
    json = _ENCODER.encode(
        _ClientEvent(
            event.type,
            event.sender,
            content,
            event.origin_server_ts,
            UNSET if event.state_key is None else event.state_key,
            redacts,
            event_id,
            UNSET if room_id is None else room_id,
            UNSET if unsigned is None or unsigned == _NOTHING_BESIDES else unsigned,
        )
    )
    return ClientForm(event_id, event.type, event.sender, event.state_key, json)


def content_json(raw: bytes) -> bytes:
    """The JSON of an event's content, byte for byte."""
    return bytes(_CONTENT.decode(raw).content)


def stripped_event(raw: bytes) -> bytes:
    """The stripped form of a state event, as in invitations."""
    return _ENCODER.encode(_STRIPPED.decode(raw))


def selected_fields(event: bytes, paths: Sequence[Sequence[str]]) -> bytes:
    """An event with some of its fields.

    :param paths: of :func:`field_path`; fields that the event does not have are left out
    """
    found: dict[str, Any] = {}
    for path in paths:
        _copy(Raw(event), found, path)
    return _ENCODER.encode(found)


def field_path(text: str) -> tuple[str, ...]:
    r"""The names in a path such as ``content.body``, where ``\.`` is a dot in a name, and ``\\`` a backslash."""
    names: list[str] = []
    name, is_escaped = "", False
    for letter in text:
        if is_escaped:
            name += letter if letter in ".\\" else "\\" + letter
            is_escaped = False
        elif letter == "\\":
            is_escaped = True
        elif letter == ".":
            names.append(name)
            name = ""
        else:
            name += letter
    return (*names, name + "\\" * is_escaped)


def _copy(value: Raw, found: dict[str, Any], path: Sequence[str]) -> None:
    """Copy one field, with the objects around it."""
    *outer, last = path
    places = [found]
    for name in outer:
        value = _members(value).get(name, _NOTHING)
        places.append(places[-1].get(name, {}))
        if not isinstance(places[-1], dict):
            return  # a shorter path had all of it
    members = _members(value)
    if last not in members:
        return
    for name, place, inner in zip(outer, places, places[1:], strict=False):
        place[name] = inner
    places[-1][last] = members[last]


_NOTHING = Raw(b"null")


def _members(value: Raw) -> dict[str, Raw]:
    """The members of an object; none of anything else."""
    if not bytes(value).lstrip().startswith(b"{"):
        return {}
    return msgspec.json.decode(value, type=dict[str, Raw])
