"""The sort orders of state resolution version 2.

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
    dependencies: Mapping[str, Collection[str]], rank: Callable[[str], tuple[Any, ...]]
) -> list[str]:
    """Lexicographical topological sort: each ID after its dependencies, the lowest rank first.

    :param dependencies: for each ID, its dependencies, which are keys of this mapping as well
    """
    waiting = {each: len(before) for each, before in dependencies.items()}
    followers: dict[str, list[str]] = {}
    for each, before in dependencies.items():
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
    """The power of an event's sender according to its auth events.

    :param power_levels: the IDs of all ``m.room.power_levels`` in the room
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
    # An event without m.room.create among its auth events is not authorised, but must be sorted.
    return 0


def reverse_topological_power_sort(
    selected: Mapping[str, Event], fetch: Fetch, power_levels: Container[str]
) -> list[Event]:
    """Sort by reverse topological power ordering.

    An event comes after its auth events; otherwise by descending power of the sender according to its
    auth events, by time, by ID.

    An auth chain path that leaves the selected events and comes back is ignored, as in Synapse
    (docs/adr/0014-state-resolution.md).

    :param selected: by event ID
    :param power_levels: the IDs of all ``m.room.power_levels`` in the room
    """

    def rank(event_id: str) -> tuple[Any, ...]:
        event = selected[event_id]
        return -sender_level(event, fetch, power_levels), event.origin_server_ts, event_id

    cited = {
        event_id: selected.keys() & auth_dependencies(event) for event_id, event in selected.items()
    }
    return [selected[event_id] for event_id in lexicographical_topological_sort(cited, rank)]


class Mainline:
    """The mainline: the power levels in force, the power levels among their auth events, and so on."""

    __slots__ = ("_levels", "_place")

    def __init__(self, tip: str | None, power_levels: Mapping[str, str | None]) -> None:
        """
        :param tip: the ``m.room.power_levels`` in force
        :param power_levels: for each in the room, the one among its auth events
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
        """Sort key of an event: position of its closest mainline event, time, ID."""
        levels = cited_power_levels(event, self._levels)
        return self._closest(levels), event.origin_server_ts, event.event_id

    def _closest(self, levels: str | None) -> int:
        """Position of the closest mainline event, 1 for the oldest; 0 if there is none."""
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
    """Sort by mainline ordering: by the position of the closest mainline event, by time, by ID.

    :param tip: the ``m.room.power_levels`` in force
    :param power_levels: for each in the room, the one among its auth events
    """
    return sorted(events, key=Mainline(tip, power_levels).rank)
