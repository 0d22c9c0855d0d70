"""Reads requests of sliding sync: the form of MSC4186, and the older one that the clients of today use.

Members that neither has are ignored, as are ``sort`` and others of MSC3575.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from synrepl.daemon.client_api.endpoints import ClientRequest
from synrepl.services.rooms.client_data.presence import wanted_presence
from synrepl.services.rooms.sliding.required_state import RequiredState
from synrepl.services.rooms.sliding.sliding_request import (
    MAX_KEY,
    MAX_LISTS,
    MAX_NAMED,
    MAX_RANGES,
    MAX_SUBSCRIPTIONS,
    MAX_TIMELINE,
    BadSlidingRequest,
    ExtensionScope,
    ListFilter,
    RoomRule,
    RoomWindows,
    SlidingRequest,
    ToDeviceWanted,
    WantedExtensions,
    check_count,
)
from synrepl.services.rooms.sync.sync import LONGEST_WAIT_S

#: Maximum number of messages to a device in one answer.
MAX_TO_DEVICE = 100

_EVERY = "*"

_Natural = Annotated[int, Meta(ge=0)]
_Pair = tuple[str, str]


class _Filters(msgspec.Struct):
    is_dm: bool | None = None
    spaces: list[str] | None = None
    is_encrypted: bool | None = None
    is_invite: bool | None = None
    is_invited: bool | None = None
    room_types: list[str | None] | None = None
    not_room_types: list[str | None] | None = None
    room_name_like: str | None = None
    tags: list[str] | None = None
    not_tags: list[str] | None = None


class _Element(msgspec.Struct):
    type: str | None = None
    state_key: str | None = None


class _Required(msgspec.Struct):
    include: list[_Element] = []
    exclude: list[_Element] = []
    lazy_members: bool = False


class _Rule(msgspec.Struct):
    timeline_limit: _Natural
    required_state: _Required | list[_Pair] = msgspec.field(default_factory=_Required)


class _List(_Rule):
    ranges: list[tuple[_Natural, _Natural]] | None = None
    range: tuple[_Natural, _Natural] | None = None
    filters: _Filters | None = None


class _Scoped(msgspec.Struct):
    enabled: bool | None = None
    lists: list[str] | None = None
    rooms: list[str] | None = None


class _ToDevice(msgspec.Struct):
    enabled: bool | None = None
    limit: _Natural | None = None
    since: str | None = None


class _Extensions(msgspec.Struct):
    to_device: _ToDevice = msgspec.field(default_factory=_ToDevice)
    e2ee: _Scoped = msgspec.field(default_factory=_Scoped)
    account_data: _Scoped = msgspec.field(default_factory=_Scoped)
    receipts: _Scoped = msgspec.field(default_factory=_Scoped)
    typing: _Scoped = msgspec.field(default_factory=_Scoped)


class SlidingBody(msgspec.Struct):
    """The body of a request, in either form.

    :ivar txn_id: given back, in the older form
    """

    conn_id: str | None = None
    txn_id: str | None = None
    pos: str | None = None
    timeout: _Natural = 0
    set_presence: str | None = None
    lists: dict[str, _List] = {}
    room_subscriptions: dict[str, _Rule] = {}
    extensions: _Extensions = msgspec.field(default_factory=_Extensions)


def sliding_body(request: ClientRequest, *, is_older: bool) -> SlidingBody:
    """Decode the body; in the older form the URL has the position and the timeout.

    :raises BadJson: :raises BadClientBody: :raises BadParameter:
    """
    body = request.body_as(SlidingBody)
    if is_older:
        body.pos = request.query.get("pos")
        body.timeout = request.number("timeout", 0, 0, int(LONGEST_WAIT_S * 1000))
        body.set_presence = request.query.get("set_presence")
    return body


def sliding_request(body: SlidingBody, user_id: str) -> SlidingRequest:
    """What a body asks.

    :raises TooMuchWanted: :raises BadSlidingRequest: :raises UnknownPresence:
    """
    check_count("lists", len(body.lists), MAX_LISTS)
    check_count("room subscriptions", len(body.room_subscriptions), MAX_SUBSCRIPTIONS)
    for place, key in [
        ("conn_id", body.conn_id or ""),
        *(("a list's name", e) for e in body.lists),
    ]:
        if len(key) > MAX_KEY or "\0" in key:
            reason = f"it may have {MAX_KEY} characters, and no NUL"
            raise BadSlidingRequest(place=place, reason=reason)
    return SlidingRequest(
        body.conn_id or "",
        body.pos or None,
        body.timeout / 1000,
        {name: _windows(name, each, user_id) for name, each in body.lists.items()},
        {room: _rule(room, each, user_id) for room, each in body.room_subscriptions.items()},
        _extensions(body.extensions),
        wanted_presence(body.set_presence),
    )


def _windows(name: str, given: _List, user_id: str) -> RoomWindows:
    ranges = given.ranges if given.range is None else [given.range]
    if ranges is not None:
        check_count(f"ranges of list {name!r}", len(ranges), MAX_RANGES)
        for first, last in ranges:
            if first > last:
                reason = f"the range {first} to {last} ends before it begins"
                raise BadSlidingRequest(place=f"list {name!r}", reason=reason)
    return RoomWindows(
        _rule(name, given, user_id),
        None if ranges is None else tuple((_place(first), _place(last)) for first, last in ranges),
        ListFilter() if given.filters is None else _filter(name, given.filters),
    )


def _place(number: int) -> int:
    """A place in a list; no list is longer than the largest."""
    return min(number, 1 << 31)


def _rule(name: str, given: _Rule, user_id: str) -> RoomRule:
    required = given.required_state
    if isinstance(required, _Required):
        count = len(required.include) + len(required.exclude)
        check_count(f"patterns of required_state of {name!r}", count, MAX_NAMED)
        state = RequiredState.of_patterns(
            {(each.type, each.state_key) for each in required.include},
            {(each.type, each.state_key) for each in required.exclude},
            required.lazy_members,
        )
    else:
        check_count(f"patterns of required_state of {name!r}", len(required), MAX_NAMED)
        state = RequiredState.of_pairs(required, user_id)
    return RoomRule(min(given.timeline_limit, MAX_TIMELINE), state)


def _filter(name: str, given: _Filters) -> ListFilter:
    listed: Mapping[str, list[Any] | None] = {
        "spaces": given.spaces,
        "room_types": given.room_types,
        "not_room_types": given.not_room_types,
        "tags": given.tags,
        "not_tags": given.not_tags,
    }
    for what, names in listed.items():
        check_count(f"{what} of list {name!r}", len(names or ()), MAX_NAMED)
    return ListFilter(
        given.is_dm,
        _some(given.spaces),
        given.is_encrypted,
        given.is_invite if given.is_invited is None else given.is_invited,
        None if given.room_types is None else frozenset(given.room_types),
        frozenset(given.not_room_types or ()),
        given.room_name_like,
        _some(given.tags),
        frozenset(given.not_tags or ()),
    )


def _extensions(given: _Extensions) -> WantedExtensions:
    to_device = given.to_device
    limit = MAX_TO_DEVICE if to_device.limit is None else min(to_device.limit, MAX_TO_DEVICE)
    return WantedExtensions(
        ToDeviceWanted(to_device.since, limit) if to_device.enabled else None,
        bool(given.e2ee.enabled),
        _scope(given.account_data),
        _scope(given.receipts),
        _scope(given.typing),
    )


def _scope(given: _Scoped) -> ExtensionScope | None:
    if not given.enabled:
        return None
    for what, names in (("lists", given.lists), ("rooms", given.rooms)):
        check_count(f"{what} of an extension", len(names or ()), MAX_NAMED)
    return ExtensionScope(_named(given.lists), _named(given.rooms))


def _named(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None or _EVERY in names else frozenset(names)


def _some(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
