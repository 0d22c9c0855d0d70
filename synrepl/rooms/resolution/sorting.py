"""The orders in which version 2 of state resolution applies events.

Source: https://spec.matrix.org/v1.16/rooms/v2/#definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

from synrepl.rooms.auth.power_levels import parse_power_levels, power_levels_of
from synrepl.rooms.chains import (
    Fetch,
    UnknownEvent,
    auth_dependencies,
    cited_power_levels,
    create_id,
)
from synrepl.rooms.event import Event


def lexicographical_topological_sort(
    auth_dependencies: Mapping[str, Collection[str]], rank: Callable[[str], tuple[Any, ...]]
) -> list[str]:
    """Each after all that it depends on; of those that could be next, the one of the lowest rank.

    :param auth_dependencies: for each, others that are keys of this mapping, too
    """
    waiting = {each: len(before) for each, before in auth_dependencies.items()}
    followers: dict[str, list[str]] = {}
    for each, before in auth_dependencies.items():
        for other in before:
            followers.setdefault(other, []).append(each)
    ready = [(rank(each), each) for each, count in waiting.items() if not count]
    heapify(ready)
    ordered = []
    while ready:
        _, each = heappop(ready)
        ordered.append(each)
        for follower in followers.get(each, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, (rank(follower), follower))
    return ordered


def sender_level(event: Event, fetch: Fetch, power_levels: Container[str]) -> float:
    """The power of an event's sender, as the events that it cites have it.

    :param power_levels: the IDs of all in the room
    """
    version = event.version
    levels_id = cited_power_levels(event, power_levels)
    power = None if levels_id is None else fetch(levels_id)
    if power is not None and not version.creators_have_infinite_power:
        parsed = parse_power_levels(power)
        return parsed.users.get(event.sender, parsed.named.get("users_default", 0))
    if version.room_id_is_create_hash:
        return power_levels_of(power, fetch(create_id(event))).of(event.sender)
    for cited in map(fetch, event.auth_event_ids):
        if cited.is_create:
            return power_levels_of(power, cited).of(event.sender)
    # What cites no creation is not authorised, and has a place in the order all the same.
    return 0


def reverse_topological_power_sort(
    selected: Mapping[str, Event], fetch: Fetch, power_levels: Container[str]
) -> list[Event]:
    """Events so that each is after those that it depends on, and the powerful, the early come first.

    "Reverse topological power ordering": an event before those that depend on it; else by the power of the
    senders, as the events that they cite have it; by time; by ID.

    A path of citations that leaves these events and comes back to them counts for nothing, as with
    the reference (docs/adr/0014-state-resolution.md).

    :param selected: by event ID
    :param power_levels: the IDs of all in the room
    """

    def rank(event_id: str) -> tuple[Any, ...]:
        event = selected[event_id]
        return -sender_level(event, fetch, power_levels), event.origin_server_ts, event_id

    cited = {
        event_id: selected.keys() & auth_dependencies(event) for event_id, event in selected.items()
    }
    return [selected[event_id] for event_id in lexicographical_topological_sort(cited, rank)]


class Mainline:
    """Power levels in force, those that they cite, and so on, and how new other events are beside them.

    "Mainline ordering".
    """

    __slots__ = ("_levels", "_place")

    def __init__(self, tip: str | None, power_levels: Mapping[str, str | None]) -> None:
        """
        :param tip: the ``m.room.power_levels`` in force
        :param power_levels: of each in the room, which it cites
        :raises UnknownEvent: the tip is not among them
        """
        if tip is not None and tip not in power_levels:
            raise UnknownEvent(event_id=tip)
        self._levels = power_levels
        line = []
        while tip is not None:
            line.append(tip)
            tip = power_levels[tip]
        self._place = {levels: place for place, levels in enumerate(reversed(line), 1)}

    def rank(self, event: Event) -> tuple[int, int, str]:
        """Where an event stands: by the newest of the mainline that it depends on, by time, by ID."""
        levels = cited_power_levels(event, self._levels)
        return self._closest(levels), event.origin_server_ts, event.event_id

    def _closest(self, levels: str | None) -> int:
        """Which of the mainline comes first on the way down, oldest 1; 0: none of them."""
        passed = []
        while levels is not None and levels not in self._place:
            passed.append(levels)
            levels = self._levels[levels]
        place = 0 if levels is None else self._place[levels]
        for each in passed:
            self._place[each] = place
        return place


def mainline_sort(
    events: Iterable[Event], tip: str | None, power_levels: Mapping[str, str | None]
) -> list[Event]:
    """Events so that those which depend on older power levels come first; then by time, by ID.

    :param tip: the ``m.room.power_levels`` in force
    :param power_levels: of each in the room, which it cites
    """
    return sorted(events, key=Mainline(tip, power_levels).rank)
