"""Reads what a client is told besides the events of rooms, in one statement at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.client_data.data import (
    NO_ROOM_DATA,
    ClientData,
    DataRooms,
    RoomData,
)
from synrepl.services.rooms.news.news import News
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.timelines.client_filter import (
    NO_FILTER,
    ClientFilter,
    EventFilter,
    RoomFilter,
)
from synrepl.services.rooms.timelines.room_token import lowered
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.clients.reading import (
    MAX_DEVICE_MESSAGES,
    TokenSpan,
    Values,
    ValuesToRead,
    read_values,
)
from synrepl.storage.clients.values import AccountData, Presence, Receipt
from synrepl.storage.database import Transaction

#: Types of what is told.
RECEIPT, TYPING, PRESENCE = "m.receipt", "m.typing", "m.presence"

_START = PositionVector()


class TypingUsers(Protocol):
    """Who types where, as this process knows it."""

    def users(self, room_id: str) -> Sequence[str]:
        """The users that type in a room."""

    def rooms(self) -> Collection[str]:
        """All rooms that have, or had, users that type."""


class ClientDataReader:
    """Reads what a client is told besides the events of rooms.

    It knows nothing of the layout of answers. A value that changed twice is told once. What ``upto`` does not cover is
    left out, unless the client knows nothing of it yet.
    """

    def __init__(self, typing: TypingUsers) -> None:
        self._typing = typing

    def needs_reading(self, news: News, rooms: DataRooms) -> bool:
        """Whether there is anything new to tell; if not, :meth:`read` need not be called."""
        return bool(
            rooms.whole
            or rooms.new_members
            or rooms.left
            or news.receipts is None
            or news.receipts
            or news.private_receipts
            or news.typing is None
            or news.typing
            or news.account_data
            or news.presence
            or news.to_device
        )

    def read(
        self,
        txn: Transaction,
        reader: TimelineReader,
        since: SyncToken | None,
        upto: SyncToken,
        news: News,
        rooms: DataRooms,
        wanted: ClientFilter = NO_FILTER,
        max_messages: int = MAX_DEVICE_MESSAGES,
    ) -> ClientData:
        """What is new above ``since`` for a device.

        :param reader: nothing of the users that it ignores is told, but messages to devices
        :param since: what the client knows; None: nothing, so everything is told
        :param upto: the positions of this process
        :param news: what may be new; nothing else is read. Kinds that are not wanted may be masked
        :param max_messages: to the device
        """
        data = _WantedData(reader, wanted)
        allowed = _allowed(rooms, wanted.room)
        asked = _values_to_read(reader, since, upto, news, allowed, data)
        values = read_values(txn, asked._replace(max_messages=max_messages))
        typing = self._changed_typing(news, allowed)
        return ClientData(
            data.global_account_data(values.account_data),
            data.rooms(values, typing, allowed),
            data.presence(values.presence),
            [each.message for each in values.to_device],
            _to_device_upto(since, upto, values),
            values.has_acknowledged,
        )

    def _changed_typing(self, news: News, rooms: DataRooms) -> dict[str, Sequence[str]]:
        """Who types, in rooms where that may have changed, and in new ones where anybody does."""
        names: Collection[str] = self._typing.rooms() if news.typing is None else news.typing
        changed = {each: self._typing.users(each) for each in names if each in rooms.joined}
        # Of a room that is new to this process, the client may have been told already.
        for room_id in rooms.whole:
            users = self._typing.users(room_id)
            if users:
                changed[room_id] = users
        return changed


def _allowed(rooms: DataRooms, wanted: RoomFilter) -> DataRooms:
    """The rooms that a filter wants."""
    joined, whole, new_members, left = rooms
    if wanted.rooms is not None or wanted.not_rooms:
        joined, whole, left = (
            list(filter(wanted.allows_room, each)) for each in (joined, whole, left)
        )
    # Many users are in thousands of rooms, whose set is not copied.
    return DataRooms(
        joined if isinstance(joined, frozenset) else frozenset(joined),
        frozenset(whole),
        new_members,
        frozenset(left),
    )


def _values_to_read(
    reader: TimelineReader,
    since: SyncToken | None,
    upto: SyncToken,
    news: News,
    rooms: DataRooms,
    data: _WantedData,
) -> ValuesToRead:
    is_first = since is None
    start = SyncToken(upto.tag) if since is None else since
    changed = frozenset(rooms.joined if news.receipts is None else news.receipts)
    changed = changed.intersection(rooms.joined) - frozenset(rooms.whole)

    def span(is_new: bool, name: str) -> TokenSpan | None:
        if is_first or not is_new:
            return None
        return TokenSpan(start.vectors[name], upto.vectors[name])

    return ValuesToRead(
        reader.user_id,
        reader.device_id,
        whole=rooms.whole,
        new_members=rooms.new_members,
        left=rooms.left,
        is_first=is_first,
        receipts=span(bool(changed), "receipts"),
        receipt_rooms=changed,
        private_receipts=span(news.private_receipts, "receipts"),
        account_data=span(news.account_data, "account_data"),
        presence=span(news.presence, "presence"),
        to_device=TokenSpan(start.to_device, upto.to_device) if news.to_device else None,
        wants_account_data=data.wants_account_data,
        wants_receipts=data.wants_receipts,
        wants_presence=data.wants_presence,
    )


class _WantedData:
    """Leaves out what a filter does not want, and what comes from users that the reader ignores.

    For a filter, the sender of account data, of a receipt and of presence is the user that it is about.
    """

    def __init__(self, reader: TimelineReader, wanted: ClientFilter) -> None:
        self._reader = reader
        self._global = wanted.account_data
        self._of_rooms = wanted.room.account_data
        self._ephemeral = wanted.room.ephemeral
        self._presence = wanted.presence

    @property
    def wants_account_data(self) -> bool:
        """Whether any account data is wanted."""
        return self._global.allows_anything or self._of_rooms.allows_anything

    @property
    def wants_receipts(self) -> bool:
        """Whether receipts are wanted."""
        return self._ephemeral.allows_anything and self._ephemeral.allows_type(RECEIPT)

    @property
    def wants_presence(self) -> bool:
        """Whether presence is wanted."""
        return self._presence.allows_anything and self._presence.allows_type(PRESENCE)

    def global_account_data(self, found: Iterable[AccountData]) -> list[AccountData]:
        """What belongs to no room."""
        return self._account_data(self._global, [each for each in found if each.room_id is None])

    def presence(self, found: Iterable[Presence]) -> list[Presence]:
        """Of whom the user is told."""
        wanted = [each for each in found if self._is_wanted(self._presence, PRESENCE, each.user_id)]
        return _newest(wanted, self._presence.limit)

    def rooms(
        self, values: Values, typing: Mapping[str, Sequence[str]], rooms: DataRooms
    ) -> dict[str, RoomData]:
        """What is told of each room."""
        account: dict[str, list[AccountData]] = defaultdict(list)
        receipts: dict[str, list[Receipt]] = defaultdict(list)
        for each in values.account_data:
            if each.room_id is not None and self._of_rooms.allows_room(each.room_id):
                account[each.room_id].append(each)
        for receipt in values.receipts:
            if self._ephemeral.allows_room(receipt.room_id) and self._is_wanted(
                self._ephemeral, RECEIPT, receipt.user_id
            ):
                receipts[receipt.room_id].append(receipt)
        found: dict[str, RoomData] = {}
        told = {*account, *receipts, *typing}
        for room_id in told.intersection(rooms.joined) | told.intersection(rooms.left):
            data = RoomData(
                self._account_data(self._of_rooms, account[room_id]),
                receipts[room_id],
                self._typing(room_id, typing.get(room_id)),
            )
            if data != NO_ROOM_DATA:
                found[room_id] = self._limited(data)
        return found

    def _account_data(self, wanted: EventFilter, found: list[AccountData]) -> list[AccountData]:
        user_id = self._reader.user_id
        return _newest([each for each in found if wanted.allows(each.type, user_id)], wanted.limit)

    def _typing(self, room_id: str, users: Sequence[str] | None) -> Sequence[str] | None:
        wanted = self._ephemeral
        if users is None or not (wanted.allows_room(room_id) and wanted.allows_type(TYPING)):
            return None
        return [each for each in users if self._is_wanted(wanted, TYPING, each)]

    def _limited(self, data: RoomData) -> RoomData:
        """With as many ephemeral events as are wanted: all receipts are one, and typing is one."""
        limit = self._ephemeral.limit
        if limit == 0:
            return replace(data, receipts=(), typing=None)
        if limit == 1 and data.receipts:
            return replace(data, typing=None)
        return data

    def _is_wanted(self, wanted: EventFilter, kind: str, user_id: str) -> bool:
        return user_id not in self._reader.ignored and wanted.allows(kind, user_id)


_V = TypeVar("_V", AccountData, Presence)


def _newest(values: list[_V], limit: int | None) -> list[_V]:
    """The values in the order of the stream, up to a number of the newest."""
    values.sort(key=lambda each: each.stream_id)
    return values if limit is None else values[len(values) - min(limit, len(values)) :]


def _to_device_upto(
    since: SyncToken | None, upto: SyncToken, values: Values
) -> PositionVector | None:
    if not values.has_more:
        return None
    last = values.to_device[-1].stream_id if values.to_device else 0
    start = _START if since is None else since.to_device
    return start.merge(lowered(upto.to_device, last))
