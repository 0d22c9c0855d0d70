"""Rooms for the tests of state resolution and auth chains."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from synrepl.rooms.chains import AuthChains, BitSetChains, chains_of
from synrepl.rooms.differing import DifferingEvents
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.lookups import Lookup, run
from synrepl.rooms.resolution.conflict import without_keys
from synrepl.rooms.resolution.resolve import resolve
from synrepl.rooms.resolution_lookups import lookup_resolution
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots, delta
from synrepl.rooms.versions import EventIds, Resolution, RoomVersion, room_version
from synrepl.rooms.view import AuthChainFacts, KnownEvents


def state_map(entries: Iterable[Sequence[str]]) -> dict[tuple[str, str], str]:
    """From the form that the vectors have."""
    return {(kind, key): event_id for kind, key, event_id in entries}


class VectorRoom:
    """The events of a row, and their auth chains."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.version: RoomVersion = room_version(row["room_version"])
        self.events: dict[str, Event] = {}
        for each in row["events"]:
            event = event_of(each["event"], self.version)
            assert event.event_id == each["event_id"], each["event_id"]
            self.events[event.event_id] = event

    @cached_property
    def chains(self) -> BitSetChains:
        """Of all its events. Rooms of version 1 may lack what events cite: it does not matter there."""
        return chains_of(self.events, self.events.__getitem__)

    def resolve(self, state_sets: Sequence[StateMap]) -> StateMap:
        """With auth chains that are known, where any are needed."""
        chains = None if self.version.resolution is Resolution.V1 else self.chains
        resolved = resolve(self.version, state_sets, self.events.__getitem__, chains)
        in_view = resolve_in_view(self.version, state_sets, self.events, chains or BitSetChains())
        assert in_view == resolved
        return resolved


class MadeRoom:
    """A room that a test makes, event by event, each with a name. In versions 1 and 2 that is its ID, too."""

    def __init__(self, version: str = "2") -> None:
        self.version = room_version(version)
        self.events: dict[str, Event] = {}
        self.named: dict[str, Event] = {}

    def add(
        self,
        name: str,
        kind: str,
        state_key: str | None = "",
        content: dict[str, Any] | None = None,
        *,
        sender: str = "@a:x",
        cites: Sequence[str] = (),
        ts: int | None = None,
    ) -> Event:
        """One more event; ``prev_events`` does not matter here.

        :param cites: names of events, which need not be there where IDs are names
        """
        given = self.version.event_ids is EventIds.GIVEN
        implied = self.version.room_id_is_create_hash
        depth = len(self.events) + 1
        cited: list[Any] = [[each, {}] for each in cites]
        if not given:
            cited = [
                self.named[each].event_id
                for each in cites
                if not (implied and self.named[each].is_create)
            ]
        fields: dict[str, Any] = {
            "type": kind,
            "sender": sender,
            "content": content or {},
            "depth": depth,
            "origin_server_ts": depth if ts is None else ts,
            "prev_events": [],
            "auth_events": cited,
            "hashes": {},
        }
        if given:
            fields["event_id"] = name
        if not implied:
            fields["room_id"] = "!r:x"
        elif self.named:
            fields["room_id"] = self.named["create"].room_id
        if state_key is not None:
            fields["state_key"] = state_key
        event = event_of(fields, self.version)
        self.events[event.event_id] = self.named[name] = event
        return event

    def begin(self, **levels: Any) -> list[str]:
        """``@a:x`` makes a public room and is in it. Returned is what other events of ``@a:x`` cite."""
        self.add("create", "m.room.create", content={"creator": "@a:x"})
        self.join("a", cites=["create"])
        users = {} if self.version.creators_have_infinite_power else {"@a:x": 100}
        self.add(
            "levels",
            "m.room.power_levels",
            content={"users": {**users, **levels}},
            cites=["create", "a"],
        )
        cites = ["create", "a", "levels"]
        self.add("rules", "m.room.join_rules", content={"join_rule": "public"}, cites=cites)
        return cites

    def join(self, user: str, cites: Sequence[str], name: str | None = None) -> None:
        """A member, whose event has the user's name."""
        self.add(
            name or user,
            "m.room.member",
            f"@{user}:x",
            {"membership": "join"},
            sender=f"@{user}:x",
            cites=cites,
        )

    def state(self, *names: str) -> dict[tuple[str, str], str]:
        """A state of these; the later of two with one key."""
        state = {}
        for name in names:
            event = self.named[name]
            assert event.state_key is not None
            state[event.type, event.state_key] = event.event_id
        return state

    def resolve(self, *state_sets: StateMap, rejected: Sequence[str] = ()) -> StateMap:
        """Without auth chains that are known."""
        resolved = resolve(
            self.version, state_sets, self.events.__getitem__, rejected=frozenset(rejected)
        )
        walked = WalkedChains(self.events)
        in_view = resolve_in_view(self.version, state_sets, self.events, walked, rejected)
        assert in_view == resolved
        return resolved


class ResolutionView:
    """As much of a room's view as resolving states needs."""

    def __init__(
        self, events: Mapping[str, Event], chains: AuthChains, rejected: Iterable[str]
    ) -> None:
        self._known = KnownEvents(events, frozenset(rejected))
        self._chains = chains

    def known_events(self, event_ids: Collection[str]) -> KnownEvents:
        return self._known

    def state_entries(
        self, states: Sequence[CompactStateMap], keys: Sequence[StateKey]
    ) -> list[tuple[str | None, ...]]:
        return [state.several(keys) for state in states]

    def state_differences(self, states: Sequence[CompactStateMap]) -> list[Delta]:
        return [delta(states[0], each) for each in states[1:]]

    def auth_chain_facts(
        self,
        differing: DifferingEvents,
        state: CompactStateMap,
        keys: Collection[StateKey],
        with_subgraph: bool,
    ) -> AuthChainFacts:
        difference = self._chains.difference(differing, without_keys(state, keys))
        conflicted = differing.events() if with_subgraph else set[str]()
        subgraph = self._chains.subgraph(conflicted)
        return AuthChainFacts(difference, subgraph, self._chains.power_levels)

    def check_conflict(self, event_ids: Collection[str]) -> None:
        """Allow any number."""


def resolve_in_view(
    version: RoomVersion,
    state_sets: Sequence[StateMap],
    events: Mapping[str, Event],
    chains: AuthChains,
    rejected: Iterable[str] = (),
) -> StateMap:
    """What states resolve to where everything is looked up in a view."""
    if not state_sets:
        return {}
    slots = Slots()
    states = [CompactStateMap(dict(each.items()), slots) for each in state_sets]
    view = ResolutionView(events, chains, rejected)
    lookup: Lookup[CompactStateMap] = lookup_resolution(version, states)
    return run(lookup, view)


def _events_of_each(differing: DifferingEvents) -> list[list[str]]:
    """The events of each state."""
    first = list(differing.first)
    others = [
        [
            *[each for place, each in enumerate(first) if place not in change.removed],
            *change.added,
        ]
        for change in differing.changes
    ]
    return [first, *others]


class WalkedChains:
    """The plainest :class:`synrepl.rooms.chains.AuthChains`: walks over all events, each time."""

    def __init__(self, events: Mapping[str, Event]) -> None:
        self._events = events

    @property
    def power_levels(self) -> dict[str, str | None]:
        """See :class:`synrepl.rooms.chains.AuthChains`."""
        every = {
            event_id
            for event_id, event in self._events.items()
            if (event.type, event.state_key) == ("m.room.power_levels", "")
        }
        return {
            event_id: next(
                (each for each in self._events[event_id].auth_event_ids if each in every), None
            )
            for event_id in every
        }

    def chain(self, start: str) -> set[str]:
        """The auth chain of an event."""
        found: set[str] = set()
        waiting = [start]
        while waiting:
            event = self._events[waiting.pop()]
            cited = set(event.auth_event_ids)
            if event.version.room_id_is_create_hash and not event.is_create:
                cited.add("$" + event.room_id[1:])
            waiting.extend(cited - found)
            found |= cited
        return found

    def difference(self, differing: DifferingEvents, shared: Iterable[str]) -> set[str]:
        """See :class:`synrepl.rooms.chains.AuthChains`."""
        common = list(shared)
        full = [
            {each for start in (*events, *common) for each in (start, *self.chain(start))}
            for events in _events_of_each(differing)
        ]
        return set().union(*full) - set.intersection(*full)

    def subgraph(self, conflicted: Iterable[str]) -> set[str]:
        """See :class:`synrepl.rooms.chains.AuthChains`."""
        ends = set(conflicted)
        between = set().union(*map(self.chain, ends))
        return ends | {each for each in between if self.chain(each) & ends}


def shuffled(state_sets: Sequence[StateMap], seed: int) -> list[StateMap]:
    """The same in another order, each with its entries in another order, too."""
    chance = random.Random(seed)
    others: list[StateMap] = []
    for states in state_sets:
        entries = list(states.items())
        chance.shuffle(entries)
        others.append(dict(entries))
    chance.shuffle(others)
    return others
