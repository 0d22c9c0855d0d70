"""Reads everything that a client is told besides the events of rooms, in one statement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.storage.clients.values import (
    PRIVATE_RECEIPT,
    AccountData,
    DeviceMessage,
    Presence,
    Receipt,
)
from synrepl.storage.clients.vector_sql import covered, uncovered, vector_params
from synrepl.storage.database import Record, Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Receipts of others that are told of one room at once: the newest.
MAX_RECEIPTS = 1_000

#: Users whose presence is told at once: those that changed last.
MAX_PRESENCE = 1_000

#: Messages to a device that are told at once. More come with the next answer.
MAX_DEVICE_MESSAGES = 100


class TokenSpan(NamedTuple):
    """Facts that ``upto`` covers and ``since`` does not."""

    since: PositionVector
    upto: PositionVector


class ValuesToRead(NamedTuple):
    """Which values are read; None, or no rooms: none of a kind.

    :ivar whole: rooms of which everything is told, whenever it changed, but for typing
    :ivar new_members: users whose presence is told, whenever it changed, if they share a room with the user
    :ivar left: rooms of which account data is told, whenever it changed
    :ivar is_first: whether global account data and the presence of the user are read as well, whenever they
        changed
    :ivar receipts: those of ``receipt_rooms`` in this span
    :ivar private_receipts: those of the user alone, in any room
    :ivar account_data: in any room, and in none
    :ivar presence: of those who share a room with the user
    :ivar to_device: to the device
    :ivar max_messages: number of these that are told at once
    """

    user_id: str
    device_id: str | None
    whole: Collection[str] = ()
    new_members: Collection[str] = ()
    left: Collection[str] = ()
    is_first: bool = False
    receipts: TokenSpan | None = None
    receipt_rooms: Collection[str] = ()
    private_receipts: TokenSpan | None = None
    account_data: TokenSpan | None = None
    presence: TokenSpan | None = None
    to_device: TokenSpan | None = None
    max_messages: int = MAX_DEVICE_MESSAGES
    wants_account_data: bool = True
    wants_receipts: bool = True
    wants_presence: bool = True


class Values(NamedTuple):
    """What was read; each value once.

    :ivar has_more: whether there are more messages to the device
    :ivar has_acknowledged: whether messages are stored that the device has acknowledged
    """

    account_data: Sequence[AccountData]
    receipts: Sequence[Receipt]
    presence: Sequence[Presence]
    to_device: Sequence[DeviceMessage]
    has_more: bool = False
    has_acknowledged: bool = False


_ACCOUNT, _RECEIPT, _PRESENCE, _MESSAGE, _ACKNOWLEDGED = range(5)

# Columns: kind, stream ID, room ID, four texts, bytes, a number, a boolean.
_ACCOUNT_DATA = (
    f"SELECT {_ACCOUNT}, t.stream_id, t.room_id, t.type, NULL::text, NULL::text, NULL::text,"
    " t.content, NULL::bigint, NULL::boolean FROM synrepl._account_data t WHERE t.user_id = %(user)s"
)
_RECEIPTS = (
    f"SELECT {_RECEIPT}, t.stream_id, r.room_id, t.receipt_type, t.user_id, t.event_id, t.thread_id,"
    " NULL::bytea, t.ts, NULL::boolean"
)
# Whoever left a room is told no more of it, even if this process does not know of the leave yet.
_IN_ROOM = (
    " JOIN synrepl._memberships m ON m.room_no = r.room_no AND m.user_id = %(user)s"
    " AND m.membership = 'join'"
)
_PRESENCES = (
    f"SELECT {_PRESENCE}, t.stream_id, NULL::text, t.user_id, t.state, t.status_msg, NULL::text,"
    " NULL::bytea, t.last_active_ts, t.currently_active FROM synrepl._presence t"
)
_SHARES_ROOM = (
    "EXISTS (SELECT FROM synrepl._memberships b JOIN synrepl._memberships a"
    " ON a.room_no = b.room_no AND a.user_id = %(user)s AND a.membership = 'join'"
    " WHERE b.user_id = t.user_id AND b.membership = 'join')"
)


def read_values(txn: Transaction, wanted: ValuesToRead) -> Values:
    """Read values in one statement; none if nothing is wanted."""
    params: dict[str, object] = {
        "user": wanted.user_id,
        "device": wanted.device_id,
        "whole": array_text(wanted.whole),
        "private": PRIVATE_RECEIPT,
        "new_members": array_text(wanted.new_members),
    }
    parts = [
        *_account_data(wanted, params),
        *_receipts(wanted, params),
        *_presence(wanted, params),
        *_to_device(wanted, params),
    ]
    if not parts:
        return Values((), (), (), ())
    txn.execute(" UNION ALL ".join(f"({each})" for each in parts), params)
    return _collected(txn.fetchall(), _most_messages(wanted))


def _account_data(wanted: ValuesToRead, params: dict[str, object]) -> list[str]:
    if not wanted.wants_account_data:
        return []
    parts = []
    if wanted.is_first:
        parts.append(f"{_ACCOUNT_DATA} AND t.room_id = ''")
    params["of_rooms"] = array_text([*wanted.whole, *wanted.left])
    if wanted.whole or wanted.left:
        parts.append(f"{_ACCOUNT_DATA} AND t.room_id = ANY (%(of_rooms)s::text[])")
    if wanted.account_data is not None:
        parts.append(
            f"{_ACCOUNT_DATA} AND {_in_span(wanted.account_data, 'account_data', params)}"
            " AND NOT t.room_id = ANY (%(of_rooms)s::text[])"
        )
    return parts


def _receipts(wanted: ValuesToRead, params: dict[str, object]) -> list[str]:
    if not wanted.wants_receipts:
        return []
    parts = []
    if wanted.whole:
        parts.append(_receipts_of("whole", "true"))
    if wanted.receipts is not None and wanted.receipt_rooms:
        params["receipt_rooms"] = array_text(wanted.receipt_rooms)
        parts.append(_receipts_of("receipt_rooms", _in_span(wanted.receipts, "receipts", params)))
    if wanted.private_receipts is not None:
        parts.append(
            f"{_RECEIPTS} FROM synrepl._receipts t JOIN synrepl._rooms r USING (room_no){_IN_ROOM}"
            f" WHERE t.user_id = %(user)s AND t.receipt_type = '{PRIVATE_RECEIPT}'"
            f" AND {_in_span(wanted.private_receipts, 'private_receipts', params)}"
        )
    return parts


def _receipts_of(rooms: str, condition: str) -> str:
    """The receipts of rooms: the user's own, and the newest ones of others."""
    return (
        f"{_RECEIPTS} FROM synrepl._rooms r{_IN_ROOM} CROSS JOIN LATERAL ("
        f"(SELECT * FROM synrepl._receipts t WHERE t.room_no = r.room_no AND t.user_id = %(user)s"
        f" AND {condition})"
        " UNION ALL (SELECT * FROM synrepl._receipts t WHERE t.room_no = r.room_no"
        f" AND t.user_id <> %(user)s AND t.receipt_type <> %(private)s AND {condition}"
        f" ORDER BY t.stream_id DESC LIMIT {MAX_RECEIPTS})) AS t"
        f" WHERE r.room_id = ANY (%({rooms})s::text[])"
    )


def _presence(wanted: ValuesToRead, params: dict[str, object]) -> list[str]:
    if not wanted.wants_presence:
        return []
    newest = f"ORDER BY t.stream_id DESC LIMIT {MAX_PRESENCE}"
    parts = []
    if wanted.is_first:
        parts.append(f"{_PRESENCES} WHERE t.user_id = %(user)s")
    if wanted.whole:
        parts.append(
            f"{_PRESENCES} WHERE t.state <> 'offline' AND EXISTS (SELECT FROM synrepl._memberships b"
            " WHERE b.user_id = t.user_id AND b.membership = 'join' AND b.room_no = ANY (ARRAY("
            "SELECT r.room_no FROM synrepl._rooms r WHERE r.room_id = ANY (%(whole)s::text[]))))"
            f" {newest}"
        )
    if wanted.new_members:
        parts.append(
            f"{_PRESENCES} WHERE t.user_id = ANY (%(new_members)s::text[]) AND t.state <> 'offline'"
            f" AND {_SHARES_ROOM}"
        )
    if wanted.presence is not None:
        parts.append(
            f"SELECT * FROM ({_PRESENCES} WHERE {_in_span(wanted.presence, 'presence', params)} {newest})"
            " AS t (kind, stream_id, room_id, user_id)"
            f" WHERE t.user_id = %(user)s OR {_SHARES_ROOM}"
        )
    return parts


def _to_device(wanted: ValuesToRead, params: dict[str, object]) -> list[str]:
    if wanted.to_device is None or wanted.device_id is None:
        return []
    mine = " FROM synrepl._to_device t WHERE t.user_id = %(user)s AND t.device_id = %(device)s"
    nothing = "NULL::text, NULL::text, NULL::text, NULL::text, NULL::text"
    messages = (
        f"SELECT {_MESSAGE}, t.stream_id, {nothing}, t.message, t.place::bigint, NULL::boolean{mine}"
        f" AND {_in_span(wanted.to_device, 'to_device', params)}"
        f" ORDER BY t.stream_id, t.place LIMIT {_most_messages(wanted) + 1}"
    )
    acknowledged = (
        f"SELECT {_ACKNOWLEDGED}, t.stream_id, {nothing}, NULL::bytea, NULL::bigint, NULL::boolean{mine}"
        f" AND {covered(wanted.to_device.since, 'to_device_since')} LIMIT 1"
    )
    return [messages, acknowledged]


def _in_span(span: TokenSpan, name: str, params: dict[str, object]) -> str:
    params |= vector_params(span.since, f"{name}_since")
    params |= vector_params(span.upto, f"{name}_upto")
    return f"{uncovered(span.since, f'{name}_since')} AND {covered(span.upto, f'{name}_upto')}"


def _most_messages(wanted: ValuesToRead) -> int:
    """Messages that are told at once: at least one, so that there is an end."""
    return max(1, min(wanted.max_messages, MAX_DEVICE_MESSAGES))


def _collected(rows: Sequence[Record], most_messages: int) -> Values:
    account: dict[tuple[str, str], AccountData] = {}
    receipts: dict[tuple[str, ...], Receipt] = {}
    presence: dict[str, Presence] = {}
    messages: list[tuple[int, int, bytes]] = []
    has_acknowledged = False
    for kind, stream_id, room_id, first, second, third, fourth, data, number, flag in rows:
        if kind == _ACCOUNT:
            found = AccountData(room_id or None, first, bytes(data), stream_id)
            account[room_id, first] = found
        elif kind == _RECEIPT:
            receipt = Receipt(room_id, first, second, third, fourth or None, number, stream_id)
            receipts[room_id, first, second, fourth] = receipt
        elif kind == _PRESENCE:
            presence[first] = Presence(first, second, third, number, flag, stream_id)
        elif kind == _MESSAGE:
            messages.append((stream_id, number, bytes(data)))
        else:
            has_acknowledged = True
    messages.sort()
    has_more = len(messages) > most_messages
    return Values(
        list(account.values()),
        list(receipts.values()),
        list(presence.values()),
        [DeviceMessage(message, token) for token, _, message in _whole_facts(messages, has_more)],
        has_more,
        has_acknowledged,
    )


def _whole_facts(
    messages: Sequence[tuple[int, int, bytes]], has_more: bool
) -> Sequence[tuple[int, int, bytes]]:
    """Without the messages of a fact that may have more: a fact has few for one device."""
    if not has_more:
        return messages
    last = messages[-1][0]
    return [each for each in messages if each[0] != last] or messages
