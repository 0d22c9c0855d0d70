"""Rules for ``m.room.create``, and the creators of a room.

Source: step 1 of https://spec.matrix.org/v1.16/rooms/v12/#authorization-rules and of every earlier version.
"""

from __future__ import annotations

from synrepl.rooms.event import Event
from synrepl.rooms.identifiers import is_user_id, server_part
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.versions import ROOM_VERSIONS


def creator_of(create: Event) -> object:
    """The creator's user ID, or whatever unchecked content has in its place."""
    return create.sender if create.version.creator_is_sender else create.content.get("creator")


def creators_of(create: Event) -> frozenset[str]:
    """All creators; ``additional_creators`` count only in versions that give creators infinite power."""
    creators = [creator_of(create)]
    if create.version.creators_have_infinite_power:
        additional = create.content.get("additional_creators")
        if isinstance(additional, list):
            creators += additional
    return frozenset(each for each in creators if isinstance(each, str))


def check_create(event: Event) -> Refusal | None:
    """Check step 1, which needs no state."""
    return (
        _is_first(event)
        or _is_in_its_room(event)
        or _version_is_known(event)
        or _names_creator(event)
        or _additional_creators_are_users(event)
    )


def _is_first(event: Event) -> Refusal | None:
    """Step 1.1."""
    if event.prev_event_ids:
        return Refusal("create-not-first", "the room's m.room.create follows other events")
    return None


def _is_in_its_room(event: Event) -> Refusal | None:
    """Step 1.2: the room ID is derived from the event (version 12) or is on the sender's server."""
    if event.version.room_id_is_create_hash:
        if "room_id" in event.fields:
            return Refusal("create-with-room-id", "m.room.create must not have a room_id")
    elif server_part(event.room_id) != server_part(event.sender):
        return Refusal(
            "create-for-other-server",
            f"the room ID {event.room_id} is not of the server of {event.sender}",
        )
    return None


def _version_is_known(event: Event) -> Refusal | None:
    """Step 1.3."""
    version = event.content.get("room_version", "1")
    if not isinstance(version, str) or version not in ROOM_VERSIONS:
        return Refusal("create-unknown-version", f"room version {version!s:.50} is not known")
    return None


def _names_creator(event: Event) -> Refusal | None:
    """Step 1.4 of versions 1 to 10."""
    if not event.version.creator_is_sender and "creator" not in event.content:
        return Refusal("create-without-creator", "m.room.create names no creator")
    return None


def _additional_creators_are_users(event: Event) -> Refusal | None:
    """Step 1.4 of version 12."""
    if not event.version.creators_have_infinite_power or "additional_creators" not in event.content:
        return None
    additional = event.content["additional_creators"]
    if not isinstance(additional, list) or not all(map(is_user_id, additional)):
        return Refusal("create-additional-creators", "additional_creators is no list of user IDs")
    return None
