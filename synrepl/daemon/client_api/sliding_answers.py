"""Encodes answers of sliding sync, in either form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from synrepl.services.rooms.client_data.data_json import (
    account_data_json,
    receipts_event,
    typing_event,
)
from synrepl.services.rooms.sliding.extensions import ToDeviceToken
from synrepl.services.rooms.sliding.room_results import RoomHero, RoomResult
from synrepl.services.rooms.sliding.sliding_request import WantedExtensions
from synrepl.services.rooms.sliding.sliding_sync import SlidingAnswer
from synrepl.services.rooms.timelines.updates import ClientEvent

#: Encodes what is told of a room.
EncodesRoom = Callable[[RoomResult], dict[str, Any]]


def encoded_answer(
    answer: SlidingAnswer, wanted: WantedExtensions, encode_room: EncodesRoom
) -> dict[str, Any]:
    """An answer as JSON.

    :param encode_room: :func:`older_room` or :func:`newer_room`
    """
    found: dict[str, Any] = {"pos": answer.pos}
    if answer.counts:
        found["lists"] = {name: {"count": count} for name, count in answer.counts.items()}
    if answer.rooms:
        found["rooms"] = {room_id: encode_room(each) for room_id, each in answer.rooms.items()}
    found["extensions"] = _extensions(answer, wanted)
    return found


def _extensions(answer: SlidingAnswer, wanted: WantedExtensions) -> dict[str, Any]:
    results = answer.extensions
    found: dict[str, Any] = {}
    if results.to_device_upto is not None:
        events = [orjson.Fragment(each) for each in results.to_device]
        found["to_device"] = {
            "next_batch": str(ToDeviceToken(results.to_device_upto)),
            "events": events,
        }
    if wanted.e2ee and answer.is_first:
        found["e2ee"] = {
            "device_one_time_keys_count": {},
            "device_unused_fallback_key_types": [],
        }
    account: dict[str, Any] = {}
    if results.account_data:
        account["global"] = account_data_json(results.account_data)
    if results.account_data_of_rooms:
        rooms = results.account_data_of_rooms
        account["rooms"] = {room_id: account_data_json(each) for room_id, each in rooms.items()}
    if account:
        found["account_data"] = account
    if results.receipts:
        receipts = {room_id: receipts_event(each) for room_id, each in results.receipts.items()}
        found["receipts"] = {"rooms": receipts}
    if results.typing:
        typing = {room_id: typing_event(users) for room_id, users in results.typing.items()}
        found["typing"] = {"rooms": typing}
    return found


def older_room(room: RoomResult) -> dict[str, Any]:
    """A room as the clients of today know it, below ``org.matrix.simplified_msc3575``.

    What was removed from the state is left out, because it has no form there.
    """
    found = _common(room)
    if room.stripped is not None:
        found["invite_state"] = [orjson.Fragment(each) for each in room.stripped]
        return found
    if room.timeline:
        found["timeline"] = _fragments(room.timeline)
    if room.is_expanded:
        found["unstable_expanded_timeline"] = True
    return found


def newer_room(room: RoomResult) -> dict[str, Any]:
    """A room as MSC4186 has it."""
    found = {"membership": room.membership, **_common(room)}
    if room.lists:
        found["lists"] = list(room.lists)
    if room.stripped is not None:
        found["stripped_state"] = [orjson.Fragment(each) for each in room.stripped]
        return found
    if room.removed:
        stubs = [{"type": kind, "state_key": key} for kind, key in room.removed]
        found["required_state"] = [*found.get("required_state", ()), *stubs]
    if room.timeline:
        found["timeline_events"] = _fragments(room.timeline)
    if room.is_expanded:
        found["expanded_timeline"] = True
    return found


def _common(room: RoomResult) -> dict[str, Any]:
    """What is the same in both forms."""
    found: dict[str, Any] = {}
    if room.is_initial:
        found["initial"] = True
    if room.is_direct is not None:
        found["is_dm"] = room.is_direct
    if room.bump_stamp is not None:
        found["bump_stamp"] = room.bump_stamp
    if room.stripped is not None:
        return found
    found |= room.names
    if room.heroes is not None:
        found["heroes"] = [_hero(each) for each in room.heroes]
    if room.joined is not None:
        found["joined_count"] = room.joined
    if room.invited is not None:
        found["invited_count"] = room.invited
    if room.is_initial:
        found |= {"notification_count": 0, "highlight_count": 0}
    if room.state:
        found["required_state"] = _fragments(room.state)
    if room.prev_batch is not None:
        found["prev_batch"] = str(room.prev_batch)
        found["num_live"] = room.num_live
        if room.is_limited:
            found["limited"] = True
    return found


def _hero(hero: RoomHero) -> Mapping[str, str]:
    names = {"displayname": hero.display_name, "avatar_url": hero.avatar_url}
    return {"user_id": hero.user_id} | {k: v for k, v in names.items() if v is not None}


def _fragments(events: Sequence[ClientEvent]) -> list[orjson.Fragment]:
    return [orjson.Fragment(each.json) for each in events]
