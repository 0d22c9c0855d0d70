"""What is told besides the events of rooms, as JSON events. All answers have them alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from synrepl.services.rooms.client_data.data import RoomData
from synrepl.services.rooms.client_data.data_reader import PRESENCE, RECEIPT, TYPING
from synrepl.storage.clients.values import AccountData, Presence, Receipt


def account_data_json(found: Sequence[AccountData]) -> list[dict[str, Any]]:
    """Account data, as events."""
    return [{"type": each.type, "content": orjson.Fragment(each.content)} for each in found]


def ephemeral_json(data: RoomData) -> list[dict[str, Any]]:
    """The receipts of a room and who types there, as events."""
    events = []
    if data.receipts:
        events.append(receipts_event(data.receipts))
    if data.typing is not None:
        events.append(typing_event(data.typing))
    return events


def receipts_event(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """All receipts of a room, as one event.

    It has one place for a user's receipts of a type at one event. Of several, that which belongs to no thread counts.

    Source: https://spec.matrix.org/v1.16/client-server-api/#mreceipt
    """
    content: dict[str, dict[str, dict[str, Any]]] = {}
    for each in sorted(receipts, key=lambda receipt: (receipt.thread_id is None, receipt.ts)):
        users = content.setdefault(each.event_id, {}).setdefault(each.receipt_type, {})
        data: dict[str, Any] = {"ts": each.ts}
        if each.thread_id is not None:
            data["thread_id"] = each.thread_id
        users[each.user_id] = data
    return {"type": RECEIPT, "content": content}


def typing_event(users: Sequence[str]) -> dict[str, Any]:
    """Who types in a room."""
    return {"type": TYPING, "content": {"user_ids": list(users)}}


def presence_event(presence: Presence, now: float) -> dict[str, Any]:
    """The presence of a user.

    :param now: seconds since 1970
    """
    return {
        "type": PRESENCE,
        "sender": presence.user_id,
        "content": presence_json(presence, now),
    }


def presence_json(presence: Presence, now: float) -> dict[str, Any]:
    """The presence of a user, without saying of whom.

    :param now: seconds since 1970
    """
    found: dict[str, Any] = {
        "presence": presence.state,
        "currently_active": presence.currently_active,
    }
    if presence.last_active_ts:
        found["last_active_ago"] = max(0, int(now * 1000) - presence.last_active_ts)
    if presence.status_msg is not None:
        found["status_msg"] = presence.status_msg
    return found
