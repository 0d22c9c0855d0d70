"""What judging an event needs to know of its room, as a read-only view, and the requests for it.

A :class:`RoomView` answers questions for sets of IDs. :class:`~synrepl.rooms.room.Room` is one, in memory.
A store is another: it answers the requests of a round (:mod:`synrepl.rooms.lookups`) with a
statement or two.

States are *handles*. A view says what a handle is: a whole map, the number of a state group, or such a
number with changes on top. Two handles that are equal stand for equal states; equal states may have
handles that are not equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import msgspec

from synrepl.rooms.event import Event
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_map import Delta


class StateHandle(Protocol):
    """Stands for a state of a room; changing it gives another handle, and needs no look-up."""

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
    :ivar rejected: the IDs of those that were rejected; may have others, too
    """

    events: Mapping[str, Event]
    rejected: Set[str]


class StateAt(Protocol[S_co]):
    """The room at an event that was judged."""

    @property
    def state_after(self) -> S_co | None:
        """None where the event is known only because others cite it."""
        ...

    @property
    def partial(self) -> bool:
        """Whether that state is known in part only."""
        ...

    @property
    def topological(self) -> int:
        """The event's topological number."""
        ...


class RoomHeads(msgspec.Struct, Generic[S], frozen=True, gc=False):
    """The room as it is now.

    :ivar room_id: None while there is no event
    :ivar empty_state: the state before the first event
    :ivar forward_extremities: the events that the next one would follow
    :ivar is_partial: whether there are events whose state is known in part only
    """

    room_id: str | None
    empty_state: S
    forward_extremities: Set[str]
    is_partial: bool


class AuthChainFacts(NamedTuple):
    """What resolving states needs to know about auth chains; see :class:`~synrepl.rooms.chains.AuthChains`.

    :ivar difference: the auth difference
    :ivar subgraph: the conflicted subgraph; empty where it was not asked for
    :ivar power_levels: of each ``m.room.power_levels`` that may come up, the one that it cites
    """

    difference: Set[str]
    subgraph: Set[str]
    power_levels: Mapping[str, str | None]


class RoomView(Protocol[S]):
    """A room as it is known somewhere. Nothing here changes it.

    Answers may hold more than was asked for. What is missing from an answer is not known.
    """

    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        """Events, rejected or not."""
        ...

    def states_at(self, event_ids: Collection[str], /) -> Mapping[str, StateAt[S]]:
        """The room at some events."""
        ...

    def heads(self) -> RoomHeads[S]:
        """The room as it is now."""
        ...

    def state_entries(
        self, states: Sequence[S], keys: Sequence[StateKey], /
    ) -> Sequence[Sequence[str | None]]:
        """Of each state, the event ID under each key; None where there is none."""
        ...

    def state_differences(self, states: Sequence[S], /) -> Sequence[Delta]:
        """What turns the first of some states into each of the others."""
        ...

    def auth_chain_facts(
        self,
        differing: Sequence[Collection[str]],
        state: S,
        keys: Collection[StateKey],
        with_subgraph: bool,
        /,
    ) -> AuthChainFacts:
        """What resolving states needs to know about their auth chains.

        :param differing: of each of the states, the events that are not in all of them
        :param state: one of them
        :param keys: where they differ; what ``state`` has under other keys they all have
        :param with_subgraph: whether the conflicted subgraph is wanted
        """
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

    differing: Sequence[Collection[str]]
    state: Any
    keys: Collection[StateKey]
    with_subgraph: bool

    def ask(self, view: RoomView[Any]) -> AuthChainFacts:
        """Call it."""
        return view.auth_chain_facts(self.differing, self.state, self.keys, self.with_subgraph)


#: Asking for it takes no IDs.
HEADS = HeadsRequest()
