"""Rooms with partial state, after a join whose response left out most memberships.

Source: the proposal on faster joins, and https://spec.matrix.org/v1.16/server-server-api/#put_matrixfederationv2send_joinroomideventid
(``members_omitted``). The partial state before the join propagates like any state. Meanwhile, the auth
events of an event take part in check 5, and nothing is soft-failed (:mod:`synrepl.rooms.judging`). Then the
resync judges every event since the join again, at its full state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from synrepl.core.errors import InputError
from synrepl.rooms.chains import auth_dependencies
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE_KEY, MEMBER
from synrepl.rooms.identifiers import server_part
from synrepl.rooms.judged import UnknownEvents
from synrepl.rooms.ordering import topological_sort
from synrepl.rooms.room import Room, RoomJudged
from synrepl.rooms.send_join_response import (
    check_essential_state_accepted,
    check_send_join_response,
)
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Delta, delta


class NotNext(InputError):
    """event {event_id} cannot be resynced yet, or is not to be: {reason}"""


class Certainty(StrEnum):
    """How reliable an answer about a room's state is, the most reliable first."""

    FINAL = "final"  #: the full state would give the same answer
    PROVISIONAL = "provisional"  #: good enough to use; the resync may correct it
    UNKNOWN = "unknown"  #: not known before the resync


class StateAnswer(NamedTuple):
    """The entry of one key of a room's state.

    :ivar event_id: None when there is no entry, or when it is not known
    """

    event_id: str | None
    certainty: Certainty


class PartialJoin(NamedTuple):
    """The ``send_join`` response of a partial join; its events have passed checks 1 to 3.

    :ivar join: the event by which this server joined
    :ivar state: the partial state before it
    :ivar auth_chain: the auth chains of ``state`` and ``join``
    :ivar servers: the servers in the room before the join
    """

    join: Event
    state: Iterable[Event]
    auth_chain: Iterable[Event]
    servers: frozenset[str]


class PendingResync(NamedTuple):
    """An event that can be resynced next.

    :ivar state_needed: the state before it must be requested from another server, because a prev event
        is not known
    """

    event_id: str
    state_needed: bool


class ResyncChange(NamedTuple):
    """An event before and after it was resynced.

    :ivar was: the verdict before
    :ivar now: the verdict after
    """

    was: RoomJudged
    now: RoomJudged

    @property
    def wrongly_accepted(self) -> bool:
        """Whether it was accepted, and so sent to clients, and is rejected now."""
        return self.was.accepted and not self.now.accepted

    @property
    def wrongly_rejected(self) -> bool:
        """Whether it was rejected and is accepted now."""
        return not self.was.accepted and self.now.accepted

    @property
    def state_before(self) -> Delta:
        """The change to the state before it; empty for an outlier."""
        if self.was.state_before is None or self.now.state_before is None:
            return Delta({})
        return delta(self.was.state_before, self.now.state_before)


def certainty_of(key: StateKey, local_server: str) -> Certainty:
    """How reliable the entry of a key is while a room has partial state.

    ``m.room.create`` cannot change. All other state but memberships came with the join, and the
    memberships of local users pass through this server. Memberships of remote users are mostly unknown.
    """
    if key == CREATE_KEY:
        return Certainty.FINAL
    kind, state_key = key
    if kind != MEMBER or server_part(state_key) == local_server:
        return Certainty.PROVISIONAL
    return Certainty.UNKNOWN


#: The entries of a state as data: type, state key and event ID.
StateRows = tuple[tuple[str, str, str], ...]


class ResyncProgress(msgspec.Struct):
    """The progress of a room's resync, as data that ``msgspec`` encodes as JSON or MessagePack.

    Together with the room (:mod:`synrepl.rooms.snapshot`), it is all that :class:`PartialRoom` needs to
    continue, even in another process.

    :ivar servers: the servers in the room before the join
    :ivar is_partial: whether events remain to be resynced
    :ivar done: events that were resynced
    :ivar remote_states: by event, the state before it as another server reported it
    :ivar unconfirmed_outliers: outliers whose verdict depends on events that remain to be resynced
    :ivar in_cycles: events that are part of, or depend on, a cycle; they are resynced last
    """

    servers: frozenset[str]
    is_partial: bool = True
    done: set[str] = msgspec.field(default_factory=set)
    remote_states: dict[str, StateRows] = msgspec.field(default_factory=dict)
    unconfirmed_outliers: set[str] = msgspec.field(default_factory=set)
    in_cycles: set[str] = msgspec.field(default_factory=set)

    def remote_state(self, event_id: str) -> StateMap | None:
        """The state before an event as another server reported it, if one did."""
        rows = self.remote_states.get(event_id)
        return None if rows is None else {(kind, key): each for kind, key, each in rows}

    def finish(self) -> None:
        """Mark the resync as complete."""
        self.is_partial = False
        for kept in (self.done, self.remote_states, self.in_cycles, self.unconfirmed_outliers):
            kept.clear()


def join_partially(room: Room, answer: PartialJoin, local_server: str) -> PartialRoom:
    """Start a room from the response to a partial join.

    :param room: an empty room
    :param local_server: this server's name
    :raises IncompleteAnswer: the response lacks required parts; see :func:`.send_join_response.check_send_join_response`
    :raises UnknownEvents: an auth event is missing from the response
    """
    partial = PartialRoom(room, ResyncProgress(answer.servers), local_server)
    state, chain = list(answer.state), list(answer.auth_chain)
    check_send_join_response(answer.join, state, chain, answer.servers)
    partial.add_outliers([*chain, *state])
    check_essential_state_accepted(answer.join.room_id, [room[event.event_id] for event in state])
    entries = {
        (event.type, event.state_key): event.event_id
        for event in state
        if event.state_key is not None
    }
    room.receive_with_state(answer.join, entries, partial=True)
    return partial


class PartialRoom:
    """A room that was joined with partial state, during its resync and after.

    :param room: the room; :func:`join_partially` starts one
    :param progress: of the resync; updated in place
    :param local_server: this server's name
    """

    def __init__(self, room: Room, progress: ResyncProgress, local_server: str) -> None:
        self.room = room
        self.progress = progress
        self._local_server = local_server

    @property
    def is_partial(self) -> bool:
        """Whether events remain to be resynced."""
        return self.progress.is_partial

    # Adding events

    def receive(self, event: Event) -> list[RoomJudged]:
        """Judge an event; see :meth:`Room.receive`. If it has to wait, :attr:`Room.missing` has the IDs it waits for.

        Add missing auth events by :meth:`add_outliers`, missing prev events by :meth:`add_with_state`.
        """
        return self._in_stream(self.room.receive(event))

    def add_outliers(self, events: Iterable[Event]) -> list[RoomJudged]:
        """Add auth events of other events, in any order.

        :returns: see :meth:`Room.receive_outlier`
        :raises UnknownEvents: one of their own auth events is neither known nor among them, or they form
            a cycle
        """
        room = self.room
        order = topological_sort(
            (each for each in events if each.event_id not in room), dependencies=auth_dependencies
        )
        if order.in_cycles:
            first = order.in_cycles[0]
            missing = ", ".join(each for each in auth_dependencies(first) if each not in room)
            raise UnknownEvents(missing=missing, room_id=first.room_id, event_id=first.event_id)
        all_judged: list[RoomJudged] = []
        for event in order.events:
            judged = room.receive_outlier(event)
            if (
                judged
                and self.progress.is_partial
                and any(map(self._is_pending, auth_dependencies(event)))
            ):
                self.progress.unconfirmed_outliers.add(event.event_id)
            self._in_stream(judged[1:])
            all_judged += judged
        return all_judged

    def add_with_state(self, event: Event, state_before: StateMap) -> list[RoomJudged]:
        """Add an event with an unknown prev event, given the full state before it.

        :param state_before: as another server reported it (``/state_ids``); its events must be known
        :raises UnknownEvents: see :meth:`Room.receive_with_state`
        """
        judged = self._in_stream(self.room.receive_with_state(event, state_before))
        if not judged:
            self.room.state_of(event.event_id, state_before)  # else the resync would raise it
        if self.progress.is_partial:
            rows = [(*key, event_id) for key, event_id in state_before.items()]
            self.progress.remote_states[event.event_id] = tuple(rows)
        return judged

    def _in_stream(self, judged: list[RoomJudged]) -> list[RoomJudged]:
        """Forget what was recorded about these events as outliers: they are in the stream now."""
        for each in judged:
            self.progress.unconfirmed_outliers.discard(each.event.event_id)
            self.progress.done.discard(each.event.event_id)
        return judged

    # Queries

    def state_entry(self, key: StateKey, at: str | None = None) -> StateAnswer:
        """The entry of a key, and how reliable it is.

        :param at: an event, for the state before it; by default the current state
        :raises NotJudged: that event is not known
        :raises NoState: that event is an outlier
        """
        state, partial = self._state(at)
        return StateAnswer(
            state.get(key), certainty_of(key, self._local_server) if partial else Certainty.FINAL
        )

    def certainty(self, keys: Iterable[StateKey] | None = None, at: str | None = None) -> Certainty:
        """How reliable the entries of some keys are together.

        For the keys that authorise an event (:func:`synrepl.rooms.auth.selection.auth_event_keys`), this shows
        whether a server should create that event now.

        :param keys: by default the full state
        """
        if not self._state(at)[1]:
            return Certainty.FINAL
        if keys is None:
            return Certainty.UNKNOWN
        order = list(Certainty)
        all_of_them = [certainty_of(key, self._local_server) for key in keys]
        return max(all_of_them, key=order.index, default=Certainty.FINAL)

    def servers(self) -> tuple[frozenset[str], Certainty]:
        """The servers in the room; provisionally, those before the join and those that joined since."""
        joined = {
            server_part(state_key)
            for (kind, state_key), event_id in self.room.current_state().items()
            if kind == MEMBER and self.room[event_id].event.membership == "join"
        }
        if self.progress.is_partial:
            return self.progress.servers | joined, Certainty.PROVISIONAL
        return frozenset(joined), Certainty.FINAL

    def _state(self, at: str | None) -> tuple[CompactStateMap, bool]:
        if at is None:
            return self.room.current_state(), self.progress.is_partial
        return self.room.state_before(at), at in self.room.partial_event_ids

    # The resync

    def pending(self) -> Iterator[PendingResync]:
        """Yield the events that can be resynced now: those with no dependency that remains to be.

        The order starts at the join: resyncing each event as it is yielded completes the resync in one
        pass, whatever the order of arrival. It covers all events since the join, and the outliers
        that depend on any of them, because a wrong verdict may have made theirs wrong. In versions
        where servers choose event IDs there may be cycles: their events, and those that depend on
        them, come last, in order of arrival.
        """
        while self.progress.is_partial:
            left = [judged.event for judged in self.room if self._is_pending(judged.event.event_id)]
            events, in_cycles = topological_sort(
                left,
                tie_break=lambda event: self.room[event.event_id].ordering,
                dependencies=self._dependencies,
            )
            if not events:
                self.progress.in_cycles.update(event.event_id for event in in_cycles)
            done = len(self.progress.done)
            for event in events or in_cycles:
                if self._is_ready(event):
                    yield PendingResync(event.event_id, self._needs_state(event))
            if len(self.progress.done) == done:
                break

    def _dependencies(self, event: Event) -> Iterator[str]:
        """What must be resynced before it: prev events, auth events, and the events of a reported state."""
        yield from self._prev_event_ids(event)
        yield from auth_dependencies(event)
        for _, _, event_id in self.progress.remote_states.get(event.event_id, ()):
            yield event_id

    def _prev_event_ids(self, event: Event) -> tuple[str, ...]:
        """The prev events that determine the state before it; none for an outlier."""
        return () if event.event_id in self.progress.unconfirmed_outliers else event.prev_event_ids

    def _is_pending(self, event_id: str) -> bool:
        """Whether an event remains to be resynced."""
        return event_id not in self.progress.done and (
            event_id in self.progress.unconfirmed_outliers or self.room.has_state(event_id)
        )

    def _is_ready(self, event: Event) -> bool:
        if not self.progress.is_partial or event.event_id in self.progress.done:
            return False
        return event.event_id in self.progress.in_cycles or not any(
            map(self._is_pending, self._dependencies(event))
        )

    def _needs_state(self, event: Event) -> bool:
        return event.event_id not in self.progress.remote_states and not all(
            map(self.room.has_state, self._prev_event_ids(event))
        )

    def resync(self, event_id: str, state_before: StateMap | None = None) -> ResyncChange:
        """Judge an event again, at the full state before it.

        After the last one, the room has full state.

        :param state_before: required when :attr:`PendingResync.state_needed`; its events must be known
        :raises NotNext: see :meth:`pending`
        :raises NotJudged: the event is not known
        :raises UnknownEvents: an event of the state is not known
        """
        was = self.room[event_id]
        if not self.progress.is_partial or not self._is_pending(event_id):
            raise NotNext(event_id=event_id, reason="there is nothing to find out")
        if not self._is_ready(was.event):
            raise NotNext(event_id=event_id, reason="it leans on others that come first")
        if state_before is None:
            if self._needs_state(was.event):
                raise NotNext(event_id=event_id, reason="the state before it is needed")
            state_before = self.progress.remote_state(event_id)
        now = self.room.judge_again(event_id, state_before)
        self.progress.done.add(event_id)
        if len(self.progress.done) == self.room.count_with_state + len(
            self.progress.unconfirmed_outliers
        ):
            self.progress.finish()
            self.room.recompute_forward_extremities()
        return ResyncChange(was, now)


class Resynced(NamedTuple):
    """The changes made by a complete resync.

    :ivar wrongly_accepted: events that were accepted and are rejected now
    :ivar wrongly_rejected: events that were rejected and are accepted now
    :ivar current_state: the change to the current state
    """

    wrongly_accepted: list[str]
    wrongly_rejected: list[str]
    current_state: Delta


def resync(partial: PartialRoom, states: Mapping[str, StateMap] = MappingProxyType({})) -> Resynced:
    """Resync a whole room, given all states it needs.

    :param states: by event ID, the full states before events that need one
    :raises NotNext: a needed state is missing
    :raises UnknownEvents: an event of such a state is not known
    """
    before = partial.room.current_state()
    changes: list[ResyncChange] = []
    for event_id, state_needed in partial.pending():
        state = states.get(event_id) if state_needed else None
        changes.append(partial.resync(event_id, state))
    return Resynced(
        [each.now.event.event_id for each in changes if each.wrongly_accepted],
        [each.now.event.event_id for each in changes if each.wrongly_rejected],
        delta(before, partial.room.current_state()),
    )
