"""What a client asks of simplified sliding sync, in either form of the proposal.

Source: MSC4186, "Request Body". The clients of today use the older form, below ``org.matrix.simplified_msc3575``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from hashlib import blake2b
from typing import NamedTuple

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.services.rooms.sliding.required_state import RequiredState

#: Maximum numbers of lists and of rooms that a request names, and of ranges of a list.
MAX_LISTS = 100
MAX_SUBSCRIPTIONS = 1_000
MAX_RANGES = 100

#: Maximum number of entries in one list of names of a request: patterns of states, spaces, tags, rooms.
MAX_NAMED = 1_000

#: Maximum number of events of a room in one answer; a request that wants more gets as many.
MAX_TIMELINE = 100

#: Maximum length of the names of connections and lists.
MAX_KEY = 255


class TooMuchWanted(InputError):
    """the request has {count} {what}, and may have {most}"""


class BadSlidingRequest(InputError):
    """{place} of this request is not acceptable: {reason}"""


class RoomRule(NamedTuple):
    """What is wanted of each room that a list or a subscription matches.

    :ivar timeline_limit: maximum number of events
    """

    timeline_limit: int
    required: RequiredState

    def combined(self, other: RoomRule) -> RoomRule:
        """What is wanted of a room that both match."""
        return RoomRule(
            max(self.timeline_limit, other.timeline_limit), self.required | other.required
        )


class RoomFacts(Flag):
    """What the state of a room says of it."""

    TYPE = auto()
    ENCRYPTION = auto()
    NAME = auto()


NO_FACTS = RoomFacts(0)


@dataclass(frozen=True, slots=True)
class ListFilter:
    """Which rooms of the user a list has; None: it does not matter.

    :ivar spaces: those that one of these spaces names as a child
    :ivar room_types: types of rooms; None among them stands for rooms without a type
    :ivar name_like: part of the name, in any case
    :ivar tags: those that have one of these
    """

    is_dm: bool | None = None
    spaces: frozenset[str] | None = None
    is_encrypted: bool | None = None
    is_invited: bool | None = None
    room_types: frozenset[str | None] | None = None
    not_room_types: frozenset[str | None] = frozenset()
    name_like: str | None = None
    tags: frozenset[str] | None = None
    not_tags: frozenset[str] = frozenset()

    @property
    def needs(self) -> RoomFacts:
        """What it asks of the states of rooms."""
        return (
            (RoomFacts.TYPE if self.room_types is not None or self.not_room_types else NO_FACTS)
            | (NO_FACTS if self.is_encrypted is None else RoomFacts.ENCRYPTION)
            | (NO_FACTS if self.name_like is None else RoomFacts.NAME)
        )


class RoomWindows(NamedTuple):
    """A list of rooms, of which windows are wanted.

    :ivar ranges: first and last place, from 0; None: all rooms
    """

    rule: RoomRule
    ranges: tuple[tuple[int, int], ...] | None = None
    filters: ListFilter = ListFilter()


class ExtensionScope(NamedTuple):
    """The rooms of which an extension is wanted.

    :ivar lists: those in the windows of these lists; None: of all
    :ivar rooms: those of these that the request subscribes to; None: all that it subscribes to
    """

    lists: frozenset[str] | None = None
    rooms: frozenset[str] | None = None


class ToDeviceWanted(NamedTuple):
    """Messages to the device.

    :ivar since: ``next_batch`` of the extension's answer before
    """

    since: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class WantedExtensions:
    """The extensions that are wanted; None: one is not."""

    to_device: ToDeviceWanted | None = None
    e2ee: bool = False
    account_data: ExtensionScope | None = None
    receipts: ExtensionScope | None = None
    typing: ExtensionScope | None = None


@dataclass(frozen=True, slots=True)
class SlidingRequest:
    """A request.

    :ivar conn_id: names the connection among those of the device
    :ivar pos: of the answer before; None: a connection begins
    :ivar timeout_s: how long to wait if nothing is new
    :ivar lists: by name
    :ivar subscriptions: by room ID
    :ivar presence: what this makes of the user's presence; None: nothing
    """

    conn_id: str = ""
    pos: str | None = None
    timeout_s: float = 0.0
    lists: Mapping[str, RoomWindows] = field(default_factory=dict)
    subscriptions: Mapping[str, RoomRule] = field(default_factory=dict)
    extensions: WantedExtensions = WantedExtensions()
    presence: str | None = None

    @property
    def has_rules(self) -> bool:
        """Whether any rooms are wanted."""
        return bool(self.lists or self.subscriptions)

    @property
    def needs(self) -> RoomFacts:
        """What its filters ask of the states of rooms."""
        found = NO_FACTS
        for each in self.lists.values():
            found |= each.filters.needs
        return found

    @property
    def spaces(self) -> frozenset[str]:
        """The spaces of all filters."""
        return frozenset().union(*(each.filters.spaces or () for each in self.lists.values()))

    def rules_tag(self) -> str:
        """A short tag of which rooms are wanted and what of them; the same for the same request."""
        wanted = self.extensions
        lists = [
            [name, _rule(each.rule), each.ranges, _filter(each.filters)]
            for name, each in sorted(self.lists.items())
        ]
        rooms = [[name, _rule(each)] for name, each in sorted(self.subscriptions.items())]
        scopes = [_scope(each) for each in (wanted.account_data, wanted.receipts, wanted.typing)]
        return blake2b(jsons.encode([lists, rooms, scopes]), digest_size=6).hexdigest()


def check_count(what: str, count: int, most: int) -> None:
    """Check a number of things in a request.

    :raises TooMuchWanted:
    """
    if count > most:
        raise TooMuchWanted(count=count, what=what, most=most)


def _rule(rule: RoomRule) -> list[object]:
    return [rule.timeline_limit, rule.required.to_json()]


def _filter(wanted: ListFilter) -> list[object]:
    return [
        wanted.is_dm,
        _names(wanted.spaces),
        wanted.is_encrypted,
        wanted.is_invited,
        _names(wanted.room_types),
        _names(wanted.not_room_types),
        wanted.name_like,
        _names(wanted.tags),
        _names(wanted.not_tags),
    ]


def _scope(scope: ExtensionScope | None) -> object:
    return None if scope is None else [_names(scope.lists), _names(scope.rooms)]


def _names(names: frozenset[str] | frozenset[str | None] | None) -> object:
    return None if names is None else sorted(names, key=repr)
