"""Room versions, and the named properties in which they differ.

Each version is the previous one with some properties replaced, so the history reads from top to
bottom. Code checks properties and never compares version numbers. Sources:
https://spec.matrix.org/v1.16/rooms/ (a page for each version).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from synrepl.core.errors import InputError


class UnknownRoomVersion(InputError):
    """room version {version!r} is not known; known are {known}"""


class Resolution(StrEnum):
    """The state resolution algorithm."""

    V1 = "1"  #: by depth, then by hash
    V2 = "2"  #: by power and mainline
    V2_1 = "2.1"  #: the same from an empty start, over the conflicted subgraph (MSC4297)


class EventIds(StrEnum):
    """The format of event IDs."""

    GIVEN = "given"  #: in the event, chosen by the sender's server
    HASH = "hash"  #: the reference hash in Base64, which has ``/`` and ``+``
    URL_SAFE_HASH = "URL-safe hash"


@dataclass(frozen=True, slots=True, eq=False)
class RoomVersion:
    """One room version. Compares by identity, so that it is a quick dictionary key.

    :ivar name: the value of ``room_version`` in ``m.room.create``
    :ivar event_ids: the format of event IDs
    :ivar resolution: the state resolution algorithm
    :ivar redactions_are_authorised: an auth rule decides whether a redaction is allowed; otherwise it is
        allowed, and checked when it is applied
    :ivar aliases_are_authorised: ``m.room.aliases`` has an auth rule, and keeps its content when redacted
    :ivar enforces_key_validity: a signature counts only if its key was valid at the event's time
    :ivar strict_json: numbers other than integers within ±(2^53 − 1) are refused
    :ivar notification_levels: changes to ``notifications`` in power levels are checked
    :ivar knocking: has membership ``knock`` and join rule ``knock``
    :ivar restricted_joins: has join rule ``restricted``
    :ivar knock_restricted_joins: has join rule ``knock_restricted``
    :ivar keeps_allow: redaction keeps ``allow`` of ``m.room.join_rules``
    :ivar keeps_authorising_user: redaction keeps ``join_authorised_via_users_server`` of ``m.room.member``
    :ivar integer_levels: power levels must be integers; text is refused
    :ivar creator_is_sender: the creator is the sender of ``m.room.create``, not ``creator`` in its content
    :ivar redacts_in_content: a redaction has ``redacts`` in its content
    :ivar updated_redaction_rules: redaction keeps all of ``m.room.create``, ``invite`` of power levels and
        the signed part of a third-party invite, and no ``membership``, ``origin``, ``prev_state``
    :ivar room_id_is_create_hash: the room ID is the ID of ``m.room.create`` with ``!`` for ``$``; that
        event has no ``room_id`` and is implied in ``auth_events``
    :ivar creators_have_infinite_power: creators have infinite power, and ``additional_creators`` are
        creators
    """

    name: str
    event_ids: EventIds
    resolution: Resolution
    redactions_are_authorised: bool
    aliases_are_authorised: bool
    enforces_key_validity: bool = False
    strict_json: bool = False
    notification_levels: bool = False
    knocking: bool = False
    restricted_joins: bool = False
    knock_restricted_joins: bool = False
    keeps_allow: bool = False
    keeps_authorising_user: bool = False
    integer_levels: bool = False
    creator_is_sender: bool = False
    redacts_in_content: bool = False
    updated_redaction_rules: bool = False
    room_id_is_create_hash: bool = False
    creators_have_infinite_power: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        return room_version, (self.name,)


V1 = RoomVersion("1", EventIds.GIVEN, Resolution.V1, True, True)
V2 = replace(V1, name="2", resolution=Resolution.V2)
V3 = replace(V2, name="3", event_ids=EventIds.HASH, redactions_are_authorised=False)
V4 = replace(V3, name="4", event_ids=EventIds.URL_SAFE_HASH)
V5 = replace(V4, name="5", enforces_key_validity=True)
V6 = replace(V5, name="6", aliases_are_authorised=False, strict_json=True, notification_levels=True)
V7 = replace(V6, name="7", knocking=True)
V8 = replace(V7, name="8", restricted_joins=True, keeps_allow=True)
V9 = replace(V8, name="9", keeps_authorising_user=True)
V10 = replace(V9, name="10", integer_levels=True, knock_restricted_joins=True)
V11 = replace(
    V10, name="11", creator_is_sender=True, redacts_in_content=True, updated_redaction_rules=True
)
V12 = replace(
    V11,
    name="12",
    resolution=Resolution.V2_1,
    room_id_is_create_hash=True,
    creators_have_infinite_power=True,
)

#: All room versions by name.
ROOM_VERSIONS: Mapping[str, RoomVersion] = MappingProxyType(
    {each.name: each for each in (V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11, V12)}
)


def room_version(name: object) -> RoomVersion:
    """The room version with a name.

    :raises UnknownRoomVersion: there is none
    """
    version = ROOM_VERSIONS.get(name) if isinstance(name, str) else None
    if version is None:
        raise UnknownRoomVersion(version=str(name)[:100], known=", ".join(ROOM_VERSIONS))
    return version
