"""The extensions of sliding sync: account data, receipts, typing, and messages to the device.

Sources: MSC3959, MSC3960, MSC3961, MSC3885; MSC3884, of which there is nothing to tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.positions.vector import BadVector, PositionVector
from synrepl.services.rooms.client_data.data import ClientData, DataRooms, RoomData
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.news.news import News
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.sliding.connection_state import RoomRecord, ToldOf
from synrepl.services.rooms.sliding.room_results import RoomResult
from synrepl.services.rooms.sliding.sliding_plan import MatchedRoom, SlidingPlan, may_have_news
from synrepl.services.rooms.sliding.sliding_request import (
    ExtensionScope,
    ToDeviceWanted,
    WantedExtensions,
)
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.clients.values import AccountData, Receipt
from synrepl.storage.database import Transaction

#: Maximum length of a position of messages, in characters.
MAX_TOKEN_CHARS = 8_192

_START = PositionVector()
_NO_ROOMS: frozenset[str] = frozenset()


class BadToDeviceToken(InputError):
    """{text!r} is not a position of messages to a device: {reason}; use 'next_batch' of an answer of this extension"""


class ToDeviceToken(NamedTuple):
    """Up to where a device has its messages. ``str()`` is ``d10~writer1.12``."""

    position: PositionVector

    @classmethod
    def parse(cls, text: str) -> ToDeviceToken:
        """Parse the output of ``str()``.

        :raises BadToDeviceToken: it is anything else
        """
        if not text.startswith("d") or len(text) > MAX_TOKEN_CHARS:
            raise BadToDeviceToken(text=text[:100], reason="it must begin with d")
        try:
            return cls(PositionVector.parse(text[1:]))
        except BadVector as error:
            raise BadToDeviceToken(text=text[:100], reason=error) from None

    def __str__(self) -> str:
        return f"d{self.position}"


@dataclass(frozen=True, slots=True)
class ExtensionResults:
    """What extensions tell; rooms by ID.

    :ivar to_device: messages, as JSON
    :ivar to_device_upto: up to where they are all; None if the extension is not wanted
    :ivar has_acknowledged: whether messages are stored that the device has acknowledged
    :ivar told: what was told of rooms whole for the first time, by number
    """

    account_data: Sequence[AccountData] = ()
    account_data_of_rooms: Mapping[str, Sequence[AccountData]] = field(default_factory=dict)
    receipts: Mapping[str, Sequence[Receipt]] = field(default_factory=dict)
    typing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    to_device: Sequence[bytes] = ()
    to_device_upto: PositionVector | None = None
    has_acknowledged: bool = False
    told: Mapping[int, ToldOf] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that a client waits for."""
        return not (
            self.account_data
            or self.account_data_of_rooms
            or self.receipts
            or self.typing
            or self.to_device
        )


#: Nothing is told.
NO_EXTENSIONS = ExtensionResults()


class ExtensionPlan(NamedTuple):
    """What extensions have to read.

    :ivar rooms: IDs of the rooms that each is wanted of
    :ivar whole: those of them of which everything is told
    :ivar returning: those that the client knows, and was not told of lately
    :ivar told: what will have been told of rooms, by number, where that is not as before
    """

    rooms: Mapping[ToldOf, frozenset[str]]
    whole: frozenset[str]
    returning: frozenset[str]
    told: Mapping[int, ToldOf]

    @property
    def data_rooms(self) -> DataRooms:
        """All rooms."""
        return DataRooms(_NO_ROOMS.union(*self.rooms.values()), self.whole)


def plan_extensions(
    wanted: WantedExtensions, plan: SlidingPlan, records: Mapping[int, RoomRecord], news: News
) -> ExtensionPlan:
    """Find the rooms of extensions.

    :param records: what the client has been told of rooms, with this answer
    """
    scopes = {
        ToldOf.ACCOUNT_DATA: wanted.account_data,
        ToldOf.RECEIPTS: wanted.receipts,
        ToldOf.TYPING: wanted.typing,
    }
    returning = {
        each.room.room_id
        for each in plan.to_read
        if each.record is not None and each.record.behind is not None
    }
    rooms: dict[ToldOf, set[str]] = {kind: set() for kind in scopes}
    whole: set[str] = set()
    told: dict[int, ToldOf] = {}
    for number, each in plan.matched.items():
        record = records.get(number)
        if record is None or record.behind is not None or each.room.membership != "join":
            continue
        room_id, after = each.room.room_id, record.told
        for kind, scope in scopes.items():
            if scope is not None and _is_in(each, scope):
                rooms[kind].add(room_id)
                after |= kind
            elif may_have_news(kind, room_id, news):
                after &= ~kind
        if after != record.told:
            told[number] = after
        if after & ~record.told or room_id in returning:
            whole.add(room_id)
    wanted_rooms = {kind: frozenset(each) for kind, each in rooms.items()}
    whole &= _NO_ROOMS.union(*rooms.values())
    return ExtensionPlan(wanted_rooms, frozenset(whole), frozenset(returning), told)


def _is_in(matched: MatchedRoom, scope: ExtensionScope) -> bool:
    """Whether an extension is wanted of a room."""
    if any(scope.lists is None or name in scope.lists for name in matched.lists):
        return True
    return matched.is_subscribed and (scope.rooms is None or matched.room.room_id in scope.rooms)


class ExtensionReader:
    """Reads what extensions tell."""

    def __init__(self, data: ClientDataReader) -> None:
        self._data = data

    def needs_reading(
        self,
        wanted: WantedExtensions,
        plan: ExtensionPlan,
        since: SyncToken | None,
        news: News,
        *,
        is_first: bool,
    ) -> bool:
        """Whether there may be anything to tell.

        :param is_first: whether the client was told of no account data yet
        """
        if wanted.account_data is not None and is_first:
            return True
        if wanted.to_device is not None and has_messages(wanted.to_device, since, news):
            return True
        if plan.whole:
            return True
        return since is not None and self._data.needs_reading(
            _masked(news, wanted, plan), plan.data_rooms
        )

    def read(
        self,
        txn: Transaction,
        reader: TimelineReader,
        wanted: WantedExtensions,
        plan: ExtensionPlan,
        since: SyncToken | None,
        upto: SyncToken,
        news: News,
        results: Mapping[str, RoomResult],
        *,
        is_first: bool,
    ) -> ExtensionResults:
        """What is told.

        :param results: of rooms, by ID
        """
        start = SyncToken(upto.tag) if since is None else since
        masked, rooms = _masked(news, wanted, plan), plan.data_rooms
        found = ExtensionResults(told=plan.told)
        given = News() if since is None else masked
        if self._data.needs_reading(given, rooms):
            data = self._data.read(txn, reader, start, upto, given, rooms)
            found = _results(plan, data, results, reader.user_id)
        if wanted.account_data is not None and is_first:
            data = self._data.read(txn, reader, None, upto, News(), DataRooms())
            found = replace(found, account_data=data.account_data)
        if wanted.to_device is not None:
            found = self._with_messages(txn, reader, wanted.to_device, since, upto, news, found)
        return found

    def _with_messages(
        self,
        txn: Transaction,
        reader: TimelineReader,
        wanted: ToDeviceWanted,
        since: SyncToken | None,
        upto: SyncToken,
        news: News,
        found: ExtensionResults,
    ) -> ExtensionResults:
        known = known_messages(wanted)
        if not has_messages(wanted, since, news):
            return replace(found, to_device_upto=known.merge(upto.to_device))
        start = SyncToken(upto.tag).replace({"to_device": known})
        data = self._data.read(
            txn,
            reader,
            start,
            upto,
            News(to_device=True),
            DataRooms(),
            max_messages=wanted.limit,
        )
        end = upto.to_device if data.to_device_upto is None else data.to_device_upto
        return replace(
            found,
            to_device=data.to_device,
            to_device_upto=known.merge(end),
            has_acknowledged=data.has_acknowledged,
        )


def nothing_to_tell(wanted: WantedExtensions, upto: SyncToken) -> ExtensionResults:
    """The results where nothing had to be read."""
    if wanted.to_device is None:
        return NO_EXTENSIONS
    return ExtensionResults(to_device_upto=known_messages(wanted.to_device).merge(upto.to_device))


def known_messages(wanted: ToDeviceWanted) -> PositionVector:
    """Up to where a device has its messages.

    :raises BadToDeviceToken:
    """
    return _START if wanted.since is None else ToDeviceToken.parse(wanted.since).position


def has_messages(wanted: ToDeviceWanted, since: SyncToken | None, news: News) -> bool:
    """Whether there may be messages that the device does not have."""
    return since is None or news.to_device or not known_messages(wanted).covers(since.to_device)


def _masked(news: News, wanted: WantedExtensions, plan: ExtensionPlan) -> News:
    """The news that extensions tell of, but for messages."""
    receipts, typing = plan.rooms[ToldOf.RECEIPTS], plan.rooms[ToldOf.TYPING]
    return News(
        receipts=receipts if news.receipts is None else news.receipts & receipts,
        typing=typing if news.typing is None else news.typing & typing,
        account_data=wanted.account_data is not None and news.account_data,
        private_receipts=wanted.receipts is not None and news.private_receipts,
    )


def _results(
    plan: ExtensionPlan, data: ClientData, results: Mapping[str, RoomResult], user_id: str
) -> ExtensionResults:
    def in_scope(kind: ToldOf) -> Collection[tuple[str, RoomData]]:
        wanted = plan.rooms[kind]
        return [(room_id, each) for room_id, each in data.rooms.items() if room_id in wanted]

    receipts = {
        room_id: _shown_receipts(each.receipts, results.get(room_id), user_id)
        for room_id, each in in_scope(ToldOf.RECEIPTS)
    }
    # A client that was told who types has to be told that they do not any more.
    typing: dict[str, Sequence[str]] = dict.fromkeys(plan.returning & plan.rooms[ToldOf.TYPING], ())
    typing |= {r: each.typing for r, each in in_scope(ToldOf.TYPING) if each.typing is not None}
    return ExtensionResults(
        data.account_data,
        {
            room_id: each.account_data
            for room_id, each in in_scope(ToldOf.ACCOUNT_DATA)
            if each.account_data
        },
        {room_id: each for room_id, each in receipts.items() if each},
        typing,
        told=plan.told,
    )


def _shown_receipts(
    receipts: Sequence[Receipt], result: RoomResult | None, user_id: str
) -> Sequence[Receipt]:
    """Of a room that is told whole, the user's own receipts and those on events that are shown."""
    if result is None or not result.is_initial:
        return receipts
    shown = {each.event_id for each in result.timeline}
    return [each for each in receipts if each.user_id == user_id or each.event_id in shown]
