"""A room as a database would have it: rows, numbered state groups, and rounds that take their time."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType, coroutine
from typing import Any, NamedTuple, TypeVar

from synrepl.rooms.differing import DifferingEvents
from synrepl.rooms.event import Event, parse_event
from synrepl.rooms.extremities import ForwardExtremities
from synrepl.rooms.judged import Judged
from synrepl.rooms.lookups import Lookup, Round, run, run_async
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_groups import StateGroup, lookup_change, read_group
from synrepl.rooms.state_map import Delta, delta
from synrepl.rooms.versions import RoomVersion
from synrepl.rooms.view import AuthChainFacts, KnownEvents, RoomHeads
from tests.rooms.resolution_rooms import WalkedChains

_T = TypeVar("_T")


@dataclass(frozen=True)
class StoredState:
    """The number of a state group, and what is different from it."""

    group: int
    changes: Mapping[StateKey, str | None] = field(default_factory=lambda: MappingProxyType({}))

    def with_entry(self, key: StateKey, event_id: str) -> StoredState:
        return replace(self, changes={**self.changes, key: event_id})

    def with_delta(self, change: Delta) -> StoredState:
        return replace(
            self, changes={**self.changes, **change.entries, **dict.fromkeys(change.removed)}
        )


class Row(NamedTuple):
    """An event as it is stored."""

    raw: bytes
    rejected: bool
    passed_all_checks: bool
    state_after: StoredState | None
    partial: bool
    topological: int
    prev_event_ids: tuple[str, ...]


@coroutine
def pause() -> Generator[None, None, None]:
    """Let others go on."""
    yield


def awaited(work: Coroutine[Any, None, _T]) -> _T:
    """The result of something that does not wait for anything from outside."""
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class StoredRoom:
    """Rows of one room, which answer lookups round by round.

    :ivar rounds: how many were answered
    """

    def __init__(self, version: RoomVersion) -> None:
        self.version = version
        self.rounds = 0
        self.rows: dict[str, Row] = {}
        self.groups: dict[int, StateGroup] = {0: StateGroup(None, Delta({}), 0)}
        self.extremities = ForwardExtremities()
        self.room_id: str | None = None

    def lookup(self, lookup: Lookup[_T]) -> _T:
        """Run a lookup, asynchronously."""
        return awaited(run_async(lookup, self.answer))

    async def answer(self, requests: Round) -> list[Any]:
        """One round trip."""
        await pause()
        self.rounds += 1
        return [request.ask(self) for request in requests]

    def keep(self, judged: Judged[StoredState]) -> None:
        """Store the outcome of an event, and the state after it."""
        event, after = judged.event, judged.state_after
        if after is not None:
            after = self.stored(after)
        self.rows[event.event_id] = Row(
            event.raw,
            not judged.accepted,
            judged.passed_all_checks,
            after,
            judged.partial,
            judged.topological,
            judged.prev_event_ids,
        )
        self.room_id = event.room_id
        if after is not None:
            self.extremities.add(event.event_id, judged, self.rows.get)

    def stored(self, state: StoredState) -> StoredState:
        """The state under a group of its own."""
        if not state.changes:
            return state
        entries = {key: each for key, each in state.changes.items() if each is not None}
        change = Delta(entries, frozenset(state.changes.keys() - entries.keys()))
        plan = run(lookup_change(state.group, change), self)
        if plan is None:
            plan = StateGroup(None, Delta(self.entries(state)), 0)
        self.groups[len(self.groups)] = plan
        return StoredState(len(self.groups) - 1)

    def entries(self, state: StoredState) -> dict[StateKey, str]:
        """All of a state."""
        whole = read_group(state.group, self.groups.__getitem__).as_dict() | state.changes
        return {key: event_id for key, event_id in whole.items() if event_id is not None}

    def event(self, event_id: str) -> Event:
        return parse_event(self.rows[event_id].raw, self.version)

    # The view

    def state_groups(self, groups: Collection[int]) -> Mapping[int, StateGroup]:
        return {each: self.groups[each] for each in groups if each in self.groups}

    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        here = [each for each in event_ids if each in self.rows]
        rejected = frozenset(each for each in here if self.rows[each].rejected)
        return KnownEvents({each: self.event(each) for each in here}, rejected)

    def states_at(self, event_ids: Collection[str], /) -> Mapping[str, Row]:
        return {each: self.rows[each] for each in event_ids if each in self.rows}

    def heads(self) -> RoomHeads[StoredState]:
        partial = any(row.partial for row in self.rows.values())
        return RoomHeads(self.room_id, StoredState(0), self.extremities.event_ids, partial)

    def state_entries(
        self, states: Sequence[StoredState], keys: Sequence[StateKey], /
    ) -> list[list[str | None]]:
        return [[whole.get(key) for key in keys] for whole in map(self.entries, states)]

    def state_differences(self, states: Sequence[StoredState], /) -> list[Delta]:
        first, *others = map(self.entries, states)
        return [delta(first, each) for each in others]

    def auth_chain_facts(
        self,
        differing: DifferingEvents,
        state: StoredState,
        keys: Collection[StateKey],
        with_subgraph: bool,
        /,
    ) -> AuthChainFacts:
        chains = WalkedChains({each: self.event(each) for each in self.rows})
        shared = [each for key, each in self.entries(state).items() if key not in keys]
        conflicted = differing.events() if with_subgraph else set[str]()
        return AuthChainFacts(
            chains.difference(differing, shared), chains.subgraph(conflicted), chains.power_levels
        )

    def check_conflict(self, event_ids: Collection[str], /) -> None:
        """Allow any number."""
