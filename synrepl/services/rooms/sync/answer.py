"""The layout of an answer to ``/sync``.

Source: https://spec.matrix.org/v1.16/client-server-api/#get_matrixclientv3sync
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from synrepl.services.rooms.client_data.data import NO_ROOM_DATA, ClientData, RoomData
from synrepl.services.rooms.client_data.data_json import (
    account_data_json,
    ephemeral_json,
    presence_event,
)
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.updates import (
    InvitedRoom,
    JoinedRoom,
    LeftRoom,
    RoomSummary,
    RoomsUpdate,
    RoomTimeline,
    fragments,
)


class ToldRoom(Protocol):
    """A joined room, as :class:`.JoinedRoom` and :class:`.EncodedRoom` are one."""

    @property
    def summary(self) -> RoomSummary | None: ...

    def to_json(self) -> tuple[object, object]: ...


def sync_answer(
    told: Mapping[str, ToldRoom],
    update: RoomsUpdate,
    data: ClientData,
    position: SyncToken,
    state: str,
    now: float,
) -> dict[str, Any]:
    """What is told, as JSON.

    :param told: the joined rooms
    :param update: the others
    :param position: ``next_batch``
    :param state: what the states of rooms are called
    :param now: seconds since 1970
    """
    silent = RoomTimeline((), False, RoomToken(position.events))
    joined = {
        each: _joined(room, state, data.rooms.get(each, NO_ROOM_DATA))
        for each, room in told.items()
    }
    for room_id, more in data.rooms.items():
        if room_id not in joined and room_id not in update.left:
            joined[room_id] = _joined(JoinedRoom(silent, ()), state, more)
    rooms: dict[str, dict[str, Any]] = {
        "join": joined,
        "invite": {each: _stripped(room, "invite_state") for each, room in update.invited.items()},
        "knock": {each: _stripped(room, "knock_state") for each, room in update.knocked.items()},
        "leave": {
            each: _left(room, state, data.rooms.get(each, NO_ROOM_DATA))
            for each, room in update.left.items()
        },
    }
    parts: dict[str, Any] = {
        "rooms": {name: found for name, found in rooms.items() if found},
        "account_data": account_data_json(data.account_data),
        "presence": [presence_event(each, now) for each in data.presence],
        "to_device": [orjson.Fragment(each) for each in data.to_device],
    }
    answer: dict[str, Any] = {
        "next_batch": str(position),
        "device_one_time_keys_count": {},
        "device_unused_fallback_key_types": [],
    }
    for name, found in parts.items():
        if found:
            answer[name] = found if name == "rooms" else {"events": found}
    return answer


def _joined(room: ToldRoom, state: str, data: RoomData) -> dict[str, Any]:
    timeline, entries = room.to_json()
    return {
        "timeline": timeline,
        state: entries,
        "account_data": {"events": account_data_json(data.account_data)},
        "ephemeral": {"events": ephemeral_json(data)},
        "unread_notifications": {"notification_count": 0, "highlight_count": 0},
        "summary": {} if room.summary is None else _summary(room.summary),
    }


def _left(room: LeftRoom, state: str, data: RoomData) -> dict[str, Any]:
    return {
        "timeline": room.timeline.to_json(),
        state: {"events": fragments(room.state)},
        "account_data": {"events": account_data_json(data.account_data)},
    }


def _stripped(room: InvitedRoom, name: str) -> dict[str, Any]:
    return {name: {"events": [orjson.Fragment(each) for each in room.state]}}


def _summary(summary: RoomSummary) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "m.joined_member_count": summary.joined,
        "m.invited_member_count": summary.invited,
    }
    if summary.heroes is not None:
        found["m.heroes"] = list(summary.heroes)
    return found
