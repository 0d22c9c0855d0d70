"""The read-only view of a room that judging an event needs, and the requests to it.

A :class:`RoomView` answers requests for sets of IDs. :class:`~synrepl.rooms.room.Room` is one, in memory.
A store answers the requests of a round (:mod:`synrepl.rooms.lookups`) with one or two SQL statements.

States are *handles*. A view chooses its kind of handle: a whole map, the number of a state group, or a
number with changes on top. Equal handles stand for equal states; equal states may have handles that are
not equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from synrepl.rooms.differing import DifferingEvents
from synrepl.rooms.event import Event
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_map import Delta


class StateHandle(Protocol):
    """Stands for a state of a room. Updates return another handle, without a lookup."""

    def with_entry(self, key: StateKey, event_id: str, /) -> Self:
        """The state with one entry set."""
        ...

    def with_delta(self, delta: Delta, /) -> Self:
        """The state with several entries set or removed."""
        ...


S = TypeVar("S", bound=StateHandle)
S_co = TypeVar("S_co", bound=StateHandle, covariant=True)


class KnownEvents(msgspec.Struct, frozen=True, gc=False):
    """Events of a room.

    :ivar events: by ID
    :ivar rejected: the IDs of those that were rejected; may contain others
    """

    events: Mapping[str, Event]
    rejected: Set[str]


class StateAt(Protocol[S_co]):
    """The room at a judged event."""

    @property
    def state_after(self) -> S_co | None:
        """The state after the event; None for an outlier."""
        ...

    @property
    def partial(self) -> bool:
        """Whether that state is partial."""
        ...

    @property
    def topological(self) -> int:
        """The topological ordering of the event."""
        ...


class RoomHeads(msgspec.Struct, Generic[S], frozen=True, gc=False):
    """The current end of a room.

    :ivar room_id: None while there is no event
    :ivar empty_state: the handle of the state before the first event
    :ivar forward_extremities: IDs of the forward extremities
    :ivar is_partial: whether some events have partial state
    """

    room_id: str | None
    empty_state: S
    forward_extremities: Set[str]
    is_partial: bool


class AuthChainFacts(NamedTuple):
    """The auth chain data that state resolution needs; see :class:`~synrepl.rooms.chains.AuthChains`.

    :ivar difference: the auth difference
    :ivar subgraph: the conflicted state subgraph; empty if it was not requested
    :ivar power_levels: for each ``m.room.power_levels`` that may be needed, the one among its auth events
    """

    difference: Set[str]
    subgraph: Set[str]
    power_levels: Mapping[str, str | None]


class RoomView(Protocol[S]):
    """A read-only view of a room.

    Answers may contain more than was requested. What is missing from an answer is not known.
    """

    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        """Events, rejected or not."""
        ...

    def states_at(self, event_ids: Collection[str], /) -> Mapping[str, StateAt[S]]:
        """The room at some events, by event ID."""
        ...

    def heads(self) -> RoomHeads[S]:
        """The current end of the room."""
        ...

    def state_entries(
        self, states: Sequence[S], keys: Sequence[StateKey], /
    ) -> Sequence[Sequence[str | None]]:
        """For each state, the event ID of each key; None where there is none."""
        ...

    def state_differences(self, states: Sequence[S], /) -> Sequence[Delta]:
        """The deltas from the first of some states to each of the others."""
        ...

    def auth_chain_facts(
        self,
        differing: DifferingEvents,
        state: S,
        keys: Collection[StateKey],
        with_subgraph: bool,
        /,
    ) -> AuthChainFacts:
        """The auth chain data for resolving some states.

        :param differing: for each state, its events that are not in all states
        :param state: one of the states
        :param keys: the conflicted keys; other entries of ``state`` are unconflicted
        :param with_subgraph: whether the conflicted state subgraph is needed
        """
        ...

    def check_conflict(self, event_ids: Collection[str], /) -> None:
        """Raise an error if these conflicted events are too many for a resolution without auth chain data."""
        ...


class EventsRequest(msgspec.Struct, frozen=True, gc=False):
    """See :meth:`RoomView.known_events`."""

    event_ids: Collection[str]

    def ask(self, view: RoomView[Any]) -> KnownEvents:
        """Call it."""
        return view.known_events(self.event_ids)


class StatesRequest(msgspec.Struct, frozen=True, gc=False):
    """See :meth:`RoomView.states_at`."""

    event_ids: Collection[str]

    def ask(self, view: RoomView[Any]) -> Mapping[str, StateAt[Any]]:
        """Call it."""
        return view.states_at(self.event_ids)


class HeadsRequest(msgspec.Struct, frozen=True, gc=False):
    """See :meth:`RoomView.heads`."""

    def ask(self, view: RoomView[Any]) -> RoomHeads[Any]:
        """Call it."""
        return view.heads()


class EntriesRequest(msgspec.Struct, frozen=True, gc=False):
    """See :meth:`RoomView.state_entries`."""

    states: Sequence[Any]
    keys: Sequence[StateKey]

    def ask(self, view: RoomView[Any]) -> Sequence[Sequence[str | None]]:
        """Call it."""
        return view.state_entries(self.states, self.keys)


class DifferencesRequest(msgspec.Struct, frozen=True, gc=False):
    """See :meth:`RoomView.state_differences`."""

    states: Sequence[Any]

    def ask(self, view: RoomView[Any]) -> Sequence[Delta]:
        """Call it."""
        return view.state_differences(self.states)


class AuthChainsRequest(msgspec.Struct, frozen=True, gc=False):
    """See :meth:`RoomView.auth_chain_facts`."""

    differing: DifferingEvents
    state: Any
    keys: Collection[StateKey]
    with_subgraph: bool

    def ask(self, view: RoomView[Any]) -> AuthChainFacts:
        """Call it."""
        return view.auth_chain_facts(self.differing, self.state, self.keys, self.with_subgraph)


class ConflictRequest(msgspec.Struct, frozen=True, gc=False):
    """See :meth:`RoomView.check_conflict`."""

    event_ids: Collection[str]

    def ask(self, view: RoomView[Any]) -> None:
        """Call it."""
        view.check_conflict(self.event_ids)


#: The only :class:`HeadsRequest`, since it has no arguments.
HEADS = HeadsRequest()
