"""Makes membership events of this server's users from the templates of other servers.

A template says where the event goes in the room. What the event says is decided here.
Source: https://spec.matrix.org/v1.16/server-server-api/#joining-rooms
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from signedjson.types import SigningKey

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.federation.answers import MembershipAction, MembershipTemplate
from synrepl.rooms import (
    ROOM_VERSIONS,
    Event,
    canonical_json,
    check_room_id,
    event_of,
    is_user_id,
    room_version,
    server_of,
    sign_event,
)

#: The member of a restricted join's content that names who let the user in.
AUTHORISED_BY = "join_authorised_via_users_server"

#: What a template decides.
_PLACE = ("room_id", "depth", "prev_events", "auth_events")

_GIVEN_IDS = ("1", "2")
_ID_BYTES = 18


class BadTemplate(InputError):
    """the template of the event is not acceptable: {reason}"""


class AskedMembership(NamedTuple):
    """What a user wants of a room.

    :ivar content: members of the event, such as ``reason``
    """

    room_id: str
    user_id: str
    content: Mapping[str, Any]


class MembershipMaker:
    """Makes membership events.

    :param key: the signing key of this server
    """

    def __init__(self, server_name: str, key: SigningKey) -> None:
        self.server_name = server_name
        self._key = key

    @property
    def versions(self) -> list[str]:
        """The room versions that this server knows."""
        return list(ROOM_VERSIONS)

    def made(
        self,
        asked: AskedMembership,
        action: MembershipAction,
        template: MembershipTemplate,
        now_ms: int,
    ) -> Event:
        """The event, signed.

        :raises UnknownRoomVersion: :raises BadTemplate: :raises BadEvent: :raises NoCanonicalJson:
        :raises BadIdentifier: the room ID is not one of that version
        """
        version = room_version(template.room_version)
        check_room_id(asked.room_id, version)
        given = template.event
        missing = [name for name in _PLACE if name not in given]
        if missing:
            raise BadTemplate(reason=f"it has no {', '.join(missing)}")
        content = {**asked.content, "membership": action}
        content.pop(AUTHORISED_BY, None)
        authorised_by = given.get("content", {}).get(AUTHORISED_BY)
        if action == "join" and authorised_by is not None:
            if not is_user_id(authorised_by):
                raise BadTemplate(reason=f"{AUTHORISED_BY!r} is no user ID")
            content[AUTHORISED_BY] = authorised_by
        fields: dict[str, Any] = {
            **{name: given[name] for name in _PLACE},
            "type": "m.room.member",
            "sender": asked.user_id,
            "state_key": asked.user_id,
            "content": content,
            "origin_server_ts": now_ms,
        }
        if version.name in _GIVEN_IDS:
            digest = sha256(canonical_json(fields)).digest()[:_ID_BYTES]
            fields["event_id"] = f"${urlsafe_b64encode(digest).decode()}:{self.server_name}"
        return event_of(sign_event(fields, version, self.server_name, self._key), version)

    def with_signature_of(self, server: str, event: Event, raw: bytes | None) -> Event:
        """An event with the signature that another server has added; nothing else of its copy counts.

        :param raw: the event as the other server sent it back; None if it did not
        """
        copy = None if raw is None else jsons.decode_exactly(raw, "the event")[0]
        signatures = copy.get("signatures") if isinstance(copy, dict) else None
        if not isinstance(signatures, dict) or server not in signatures:
            return event
        signed = {**event.signatures, server: signatures[server]}
        return event_of({**event.fields, "signatures": signed}, event.version)


def authorising_server(event: Event) -> str | None:
    """The server that must sign a restricted join; None for any other event."""
    user_id = event.content.get(AUTHORISED_BY)
    return server_of(user_id) if is_user_id(user_id) else None
