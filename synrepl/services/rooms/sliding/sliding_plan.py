"""Decides which rooms an answer has to read, without reading any."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from synrepl.services.rooms.news.news import News
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.sliding.connection_state import (
    MAX_ROOMS,
    WHOLE,
    ConnectionState,
    RoomRecord,
    ToldOf,
)
from synrepl.services.rooms.sliding.list_filtering import filtered
from synrepl.services.rooms.sliding.room_labels import RoomLabels
from synrepl.services.rooms.sliding.room_lists import ListedRoom, UserRooms
from synrepl.services.rooms.sliding.sliding_request import (
    MAX_TIMELINE,
    RoomRule,
    RoomWindows,
    SlidingRequest,
)
from synrepl.storage.rooms.timelines.user_rooms import UserRoom

#: Maximum number of rooms in one answer, and of events in all their timelines together. The next answer has more.
MAX_TOLD = 1_000
MAX_EVENTS_TOLD = 200 * MAX_TIMELINE


class MatchedRoom(NamedTuple):
    """A room that a request wants.

    :ivar rule: what all lists and subscriptions together want of it
    :ivar lists: names of the lists that have it in a window
    """

    room: UserRoom
    rule: RoomRule
    lists: tuple[str, ...] = ()
    is_subscribed: bool = False


class RoomToRead(NamedTuple):
    """A room of which something may have to be told.

    :ivar record: what was told before; None: nothing
    :ivar since: the token up to which it was told; None: nothing was
    """

    matched: MatchedRoom
    record: RoomRecord | None = None
    since: SyncToken | None = None

    @property
    def room(self) -> UserRoom:
        """The room."""
        return self.matched.room


class SlidingPlan(NamedTuple):
    """What an answer has.

    :ivar counts: number of rooms in each list, whatever its windows
    :ivar matched: the rooms that are wanted, by number
    :ivar records: of rooms that have news which are not told, and None for rooms that are gone
    :ivar is_complete: whether nothing is left for the next answer
    """

    counts: Mapping[str, int]
    matched: Mapping[int, MatchedRoom]
    to_read: Sequence[RoomToRead]
    records: Mapping[int, RoomRecord | None]
    is_complete: bool


class PlannedFrom(NamedTuple):
    """What a plan is made from.

    :ivar since: the token of the request; None for the first one of a connection
    :ivar news: since then
    :ivar server: name of the server
    """

    request: SlidingRequest
    state: ConnectionState
    listed: UserRooms
    labels: RoomLabels
    since: SyncToken | None
    news: News
    server: str


def make_plan(given: PlannedFrom) -> SlidingPlan:
    """Find the rooms that are wanted, and those of them of which there may be something to tell."""
    counts, matched = _matched(given)
    has_news = _news_test(given)
    to_read: list[RoomToRead] = []
    records: dict[int, RoomRecord | None] = {}
    tokens = {each: SyncToken.parse(each, given.server) for each in given.state.behind}
    events = 0
    is_complete = True
    for number, each in matched.items():
        record = given.state.rooms.get(number)
        if record is None:
            reading = RoomToRead(each)
        elif record.behind is not None:
            reading = RoomToRead(each, record, tokens[record.behind])
        elif has_news(each.room) or _is_expanded(each, record, given.labels):
            reading = RoomToRead(each, record, given.since)
        else:
            continue
        events += each.rule.timeline_limit
        if len(to_read) < MAX_TOLD and (events <= MAX_EVENTS_TOLD or not to_read):
            to_read.append(reading)
            continue
        is_complete = False
        if record is not None and record.behind is None and has_news(each.room):
            records[number] = record._replace(behind=str(given.since))
    records |= _left_behind(given, matched, has_news)
    return SlidingPlan(counts, matched, to_read, records, is_complete)


def _matched(given: PlannedFrom) -> tuple[dict[str, int], dict[int, MatchedRoom]]:
    """The numbers of rooms in lists, and the rooms that are wanted."""
    request, listed = given.request, given.listed
    shown = list(listed.shown(given.state.rooms))
    counts: dict[str, int] = {}
    matched: dict[int, MatchedRoom] = {}
    for room, rule in _subscribed(request, shown):
        if _waits(room) and rule.required.awaits_members(given.server):
            continue
        matched[room.room_no] = MatchedRoom(room, rule, is_subscribed=True)
    for name, windows in request.lists.items():
        told = shown
        if windows.rule.required.awaits_members(given.server):
            told = [each for each in shown if not _waits(each.room)]
        found = filtered(told, windows.filters, listed, given.labels)
        counts[name] = len(found)
        for each in _in_windows(found, windows):
            number = each.room.room_no
            known = matched.get(number)
            if known is not None:
                rule = known.rule.combined(windows.rule)
                matched[number] = known._replace(rule=rule, lists=(*known.lists, name))
            elif len(matched) < MAX_ROOMS:
                matched[number] = MatchedRoom(each.room, windows.rule, (name,))
    return counts, matched


def _waits(room: UserRoom) -> bool:
    """Whether a room is not told before its state is complete, if members are wanted.

    A client would take those that are known for all of them. Source: the proposal on faster joins.
    """
    return room.is_partial and room.membership == "join"


def _subscribed(
    request: SlidingRequest, shown: Iterable[ListedRoom]
) -> Iterable[tuple[UserRoom, RoomRule]]:
    wanted = request.subscriptions
    if wanted:
        for each in shown:
            if each.room.room_id in wanted:
                yield each.room, wanted[each.room.room_id]


def _in_windows(found: Sequence[ListedRoom], windows: RoomWindows) -> Iterable[ListedRoom]:
    """The rooms in any of the ranges, in their order."""
    if windows.ranges is None:
        return found
    if len(windows.ranges) == 1:
        first, last = windows.ranges[0]
        return found[first : last + 1]
    places = {
        place for first, last in windows.ranges for place in range(first, min(last + 1, len(found)))
    }
    return [found[place] for place in sorted(places)]


def _news_test(given: PlannedFrom) -> Callable[[UserRoom], bool]:
    """Whether the events of a room may have changed since the request's token."""
    if given.since is None:
        return lambda room: False
    linear, changed = given.since.events.linear, given.news.rooms

    def has_news(room: UserRoom) -> bool:
        if room.stream_id > linear:
            return True
        if room.membership != "join":
            return False
        if changed is None:
            return max(room.newest, room.state_only) > linear
        return room.room_id in changed

    return has_news


def _is_expanded(matched: MatchedRoom, record: RoomRecord, labels: RoomLabels) -> bool:
    """Whether more is wanted of a room than the client was told."""
    is_direct = matched.room.room_id in labels.direct
    return (
        matched.rule.timeline_limit > record.depth != WHOLE
        or not record.knows(matched.rule.required)
        or is_direct != (ToldOf.DIRECT in record.told)
    )


def _left_behind(
    given: PlannedFrom,
    matched: Mapping[int, MatchedRoom],
    has_news: Callable[[UserRoom], bool],
) -> dict[int, RoomRecord | None]:
    """Records of rooms that are not wanted now and have news, and of rooms that are not in the list any more."""
    known = given.state.rooms
    gone: dict[int, RoomRecord | None] = dict.fromkeys(known.keys() - given.listed.numbers)
    if given.since is None:
        return gone
    behind = str(given.since)
    # Mostly there are none.
    others = [
        (kind, rooms)
        for kind in _OTHER_KINDS
        if (rooms := _rooms_with_news(kind, given.news)) != frozenset()
    ]
    for each in given.listed.rooms:
        number = each.room.room_no
        record = known.get(number)
        if record is None or record.behind is not None or number in matched:
            continue
        has_other_news = others and any(
            (rooms is None or each.room.room_id in rooms) and kind in record.told
            for kind, rooms in others
        )
        if has_other_news or has_news(each.room):
            gone[number] = record._replace(behind=behind)
    return gone


_OTHER_KINDS = (ToldOf.ACCOUNT_DATA, ToldOf.RECEIPTS, ToldOf.TYPING)


def may_have_news(kind: ToldOf, room_id: str, news: News) -> bool:
    """Whether there may be anything new of what an extension tells of a room."""
    rooms = _rooms_with_news(kind, news)
    return rooms is None or room_id in rooms


def _rooms_with_news(kind: ToldOf, news: News) -> Collection[str] | None:
    """The IDs of the rooms of which there may be anything new of this kind; None: all."""
    if kind is ToldOf.ACCOUNT_DATA:
        return None if news.account_data else frozenset()
    if kind is ToldOf.RECEIPTS:
        return None if news.private_receipts else news.receipts
    return news.typing
