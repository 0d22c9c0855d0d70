"""Filters of clients: which rooms and events an answer has.

What is not named by the specification is ignored. ``related_by_senders``, ``related_by_rel_types`` and the event
format ``federation`` are refused: relations between events are not indexed, and clients have no use for federation
JSON.

Source: https://spec.matrix.org/v1.16/client-server-api/#filtering
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from synrepl.core.errors import InputError
from synrepl.core.jsons import decode
from synrepl.storage.rooms.visibility.event_filter import EventFilterSql

#: Maximum number of names in one list of a filter, and of bytes in each.
MAX_NAMES = 1_000
MAX_NAME_BYTES = 255

#: Maximum number of events that are sent of a room at once; a filter that wants more gets as many.
MAX_EVENTS = 100

#: The same if a filter does not say it.
DEFAULT_EVENTS = 10

#: Texts of filters that are kept with their filters, and the bytes up to which one is.
_KEPT, KEPT_BYTES = 256, 4_096


class BadFilter(InputError):
    """the filter's {path} is not acceptable: {reason}"""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are wanted; None as a list: all.

    :ivar limit: maximum number of events; None: the filter does not say
    :ivar types: with ``*`` for any text
    """

    limit: int | None = None
    types: Sequence[str] | None = None
    not_types: Sequence[str] = ()
    senders: Sequence[str] | None = None
    not_senders: Sequence[str] = ()

    @property
    def count(self) -> int:
        """The number of events to send of a timeline."""
        return DEFAULT_EVENTS if self.limit is None else min(self.limit, MAX_EVENTS)

    @property
    def allows_anything(self) -> bool:
        """Whether anything may be wanted at all."""
        return not (
            self.limit == 0 or self.types == () or self.senders == () or "*" in self.not_types
        )

    def allows_type(self, kind: str) -> bool:
        """Whether events of a type are wanted."""
        return not _matches(kind, self.not_types) and (
            self.types is None or _matches(kind, self.types)
        )

    def allows(self, kind: str, sender: str) -> bool:
        """Whether events of a type by a sender are wanted."""
        if sender in self.not_senders or not (self.senders is None or sender in self.senders):
            return False
        return self.allows_type(kind)


@dataclass(frozen=True, slots=True)
class RoomEventFilter(EventFilter):
    """Which events of rooms are wanted.

    :ivar lazy_load_members: whether only memberships are sent that are needed for the events shown
    :ivar include_redundant_members: whether they are sent although the client may know them
    :ivar contains_url: whether ``content`` has ``url``; None: either
    """

    rooms: Sequence[str] | None = None
    not_rooms: Sequence[str] = ()
    lazy_load_members: bool = False
    include_redundant_members: bool = False
    contains_url: bool | None = None
    unread_thread_notifications: bool = False

    def allows_room(self, room_id: str) -> bool:
        """Whether events of a room are wanted."""
        return room_id not in self.not_rooms and (self.rooms is None or room_id in self.rooms)

    def sql(self) -> EventFilterSql:
        """The same for statements, without the rooms."""
        return EventFilterSql(
            types=self.types,
            not_types=self.not_types,
            senders=self.senders,
            not_senders=self.not_senders,
            contains_url=self.contains_url,
        )


@dataclass(frozen=True, slots=True)
class RoomFilter:
    """Which rooms are wanted, and what of them.

    :ivar include_leave: whether an initial sync has rooms that the user left
    """

    rooms: Sequence[str] | None = None
    not_rooms: Sequence[str] = ()
    include_leave: bool = False
    timeline: RoomEventFilter = RoomEventFilter()
    state: RoomEventFilter = RoomEventFilter()
    ephemeral: RoomEventFilter = RoomEventFilter()
    account_data: RoomEventFilter = RoomEventFilter()

    def allows_room(self, room_id: str) -> bool:
        """Whether a room is wanted."""
        return room_id not in self.not_rooms and (self.rooms is None or room_id in self.rooms)

    @property
    def lazy_load_members(self) -> bool:
        """Whether only memberships are sent that are needed for the events shown."""
        return self.state.lazy_load_members or self.timeline.lazy_load_members


@dataclass(frozen=True, slots=True)
class ClientFilter:
    """What of everything is wanted.

    :ivar event_fields: paths of the fields that events have, with dots escaped by backslashes; None: all
    """

    event_fields: Sequence[str] | None = None
    presence: EventFilter = EventFilter()
    account_data: EventFilter = EventFilter()
    room: RoomFilter = RoomFilter()


#: Everything.
NO_FILTER = ClientFilter()


def parse_filter(value: object) -> ClientFilter:
    """Parse a ``Filter``, as ``/sync`` takes it.

    :param value: decoded JSON
    :raises BadFilter: something in it is not as the specification has it, or not supported
    """
    fields = _object(value, "")
    if fields.get("event_format", "client") != "client":
        raise BadFilter(path="event_format", reason="only 'client' is supported")
    return ClientFilter(
        event_fields=_names(fields, "event_fields", ""),
        presence=EventFilter(**_event_filter(fields, "presence", "")),
        account_data=EventFilter(**_event_filter(fields, "account_data", "")),
        room=_room_filter(fields),
    )


def parse_filter_text(text: bytes) -> ClientFilter:
    """The same from JSON as text. Clients with the same text get the same object.

    :raises BadJson: :raises BadFilter:
    """
    return _kept_filter(text) if len(text) <= KEPT_BYTES else _filter_of(text)


def _filter_of(text: bytes) -> ClientFilter:
    return parse_filter(decode(text, "the filter"))


_kept_filter = lru_cache(_KEPT)(_filter_of)


def parse_room_event_filter(value: object) -> RoomEventFilter:
    """Parse a ``RoomEventFilter``, as ``/messages`` and ``/context`` take it.

    :param value: decoded JSON
    :raises BadFilter: see :func:`parse_filter`
    """
    return _room_event_filter({"filter": value}, "filter", "")


def _room_filter(fields: Mapping[str, Any]) -> RoomFilter:
    found = _object(fields.get("room", {}), "room")
    return RoomFilter(
        rooms=_names(found, "rooms", "room."),
        not_rooms=_names(found, "not_rooms", "room.") or (),
        include_leave=_flag(found, "include_leave", "room."),
        timeline=_room_event_filter(found, "timeline", "room."),
        state=_room_event_filter(found, "state", "room."),
        ephemeral=_room_event_filter(found, "ephemeral", "room."),
        account_data=_room_event_filter(found, "account_data", "room."),
    )


def _room_event_filter(fields: Mapping[str, Any], name: str, path: str) -> RoomEventFilter:
    found = _object(fields.get(name, {}), path + name)
    inner = f"{path}{name}."
    for unsupported in ("related_by_senders", "related_by_rel_types"):
        if found.get(unsupported):
            raise BadFilter(path=inner + unsupported, reason="it is not supported by this server")
    return RoomEventFilter(
        **_event_filter(fields, name, path),
        rooms=_names(found, "rooms", inner),
        not_rooms=_names(found, "not_rooms", inner) or (),
        lazy_load_members=_flag(found, "lazy_load_members", inner),
        include_redundant_members=_flag(found, "include_redundant_members", inner),
        contains_url=_flag(found, "contains_url", inner) if "contains_url" in found else None,
        unread_thread_notifications=_flag(found, "unread_thread_notifications", inner),
    )


def _event_filter(fields: Mapping[str, Any], name: str, path: str) -> dict[str, Any]:
    """The fields of an :class:`EventFilter`."""
    found = _object(fields.get(name, {}), path + name)
    inner = f"{path}{name}."
    limit = found.get("limit")
    if "limit" in found and (type(limit) is not int or limit < 0):
        raise BadFilter(path=f"{inner}limit", reason="it must be a whole number from 0 on")
    return {
        "limit": limit,
        "types": _names(found, "types", inner),
        "not_types": _names(found, "not_types", inner) or (),
        "senders": _names(found, "senders", inner),
        "not_senders": _names(found, "not_senders", inner) or (),
    }


def _object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadFilter(path=path or "JSON", reason="it must be an object")
    return value


def _flag(fields: Mapping[str, Any], name: str, path: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise BadFilter(path=path + name, reason="it must be true or false")
    return value


def _names(fields: Mapping[str, Any], name: str, path: str) -> tuple[str, ...] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MAX_NAMES:
        raise BadFilter(path=path + name, reason=f"it must be a list of at most {MAX_NAMES} texts")
    for each in value:
        if not isinstance(each, str) or "\0" in each or len(each.encode()) > MAX_NAME_BYTES:
            reason = f"each must be a text of at most {MAX_NAME_BYTES} bytes without NUL"
            raise BadFilter(path=path + name, reason=reason)
    return tuple(value)


def _matches(kind: str, patterns: Sequence[str]) -> bool:
    return any(
        pattern == kind or ("*" in pattern and fnmatchcase(kind, _only_stars(pattern)))
        for pattern in patterns
    )


def _only_stars(pattern: str) -> str:
    """A pattern in which only ``*`` has a meaning."""
    return pattern.replace("[", "[[]").replace("?", "[?]")
