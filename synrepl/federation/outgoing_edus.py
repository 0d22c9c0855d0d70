"""EDUs that this server sends, as JSON.

Source: https://spec.matrix.org/v1.16/server-server-api/#edus
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core import jsons
from synrepl.federation.transactions import MAX_EDU

#: Maximum size of the name of a device and a message to it, as JSON: an EDU has room for them and all IDs of any length.
MAX_SENT_MESSAGE = MAX_EDU - 5_120

#: Size of the messages of an EDU. The rest is left for the sender, and the type and ID of the messages.
_MESSAGES_BYTES = MAX_EDU - 3_328


class SentPresence(NamedTuple):
    """The presence of a user of this server.

    :ivar last_active_ts: milliseconds since 1970; 0: never
    """

    user_id: str
    state: str
    last_active_ts: int
    status_msg: str | None
    currently_active: bool


class SentReceipt(NamedTuple):
    """How far a user of this server has read.

    :ivar ts: milliseconds since 1970
    """

    user_id: str
    event_id: str
    thread_id: str | None
    ts: int


def encoded_edu(edu_type: str, content: Mapping[str, Any]) -> bytes:
    """An EDU.

    :raises ValueError: the content has no canonical JSON
    """
    return jsons.canonical({"edu_type": edu_type, "content": content})


def typing_edu(room_id: str, user_id: str, is_typing: bool) -> bytes:
    """A user begins or ceases to type."""
    return encoded_edu("m.typing", {"room_id": room_id, "user_id": user_id, "typing": is_typing})


def presence_edu(presences: Iterable[SentPresence], now_ms: int) -> bytes:
    """Users are there, or not."""
    push = []
    for each in presences:
        entry: dict[str, Any] = {
            "user_id": each.user_id,
            "presence": each.state,
            "currently_active": each.currently_active,
        }
        if each.last_active_ts:
            entry["last_active_ago"] = max(0, now_ms - each.last_active_ts)
        if each.status_msg is not None:
            entry["status_msg"] = each.status_msg
        push.append(entry)
    return encoded_edu("m.presence", {"push": push})


def receipts_edu(rooms: Mapping[str, Iterable[SentReceipt]]) -> bytes:
    """Users have read. Each user has one receipt in a room."""
    content: dict[str, Any] = {}
    for room_id, receipts in rooms.items():
        users: dict[str, Any] = {}
        for each in receipts:
            data: dict[str, Any] = {"ts": each.ts}
            if each.thread_id is not None:
                data["thread_id"] = each.thread_id
            users[each.user_id] = {"event_ids": [each.event_id], "data": data}
        content[room_id] = {"m.read": users}
    return encoded_edu("m.receipt", content)


def device_list_edu(user_id: str, stream_id: int) -> bytes:
    """The devices of a user have changed: the other server is to ask for all of them.

    It does because the EDU cites no earlier one.
    """
    content = {"user_id": user_id, "device_id": "", "stream_id": stream_id, "prev_id": []}
    return encoded_edu("m.device_list_update", content)


def message_edus(
    sender: str, kind: str, messages: Mapping[str, Mapping[str, Any]], message_id: str
) -> Sequence[bytes]:
    """Messages to devices of one server, as few EDUs as their size allows.

    :param kind: the type of the messages
    :param messages: by user and device, each of at most :data:`MAX_SENT_MESSAGE` bytes
    :param message_id: identifies them for the other server; several EDUs get a number each
    """
    parts: list[dict[str, dict[str, Any]]] = [{}]
    size = 0
    for user_id, devices in messages.items():
        for device_id, content in devices.items():
            needed = len(jsons.canonical({user_id: {device_id: content}}))
            if size and size + needed > _MESSAGES_BYTES:
                parts.append({})
                size = 0
            parts[-1].setdefault(user_id, {})[device_id] = content
            size += needed
    return [
        encoded_edu(
            "m.direct_to_device",
            {
                "sender": sender,
                "type": kind,
                "message_id": message_id if len(parts) == 1 else f"{message_id}-{number}",
                "messages": part,
            },
        )
        for number, part in enumerate(parts, 1)
    ]
