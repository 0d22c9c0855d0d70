"""Rooms that are known in part: after a join that brought the state without most memberships.

Source: the seed on faster joins, and https://spec.matrix.org/v1.16/server-server-api/#put_matrixfederationv2send_joinroomideventid
(``members_omitted``). The part of the state before the join propagates as states do. While it does, what an
event cites takes part in check 5 and nothing is soft-failed (:mod:`synrepl.rooms.room`). Then every event
since the join is judged again at its whole state: the resync.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from synrepl.core.errors import InputError
from synrepl.rooms.auth.users import server_part
from synrepl.rooms.chains import auth_dependencies
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE_KEY, MEMBER
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
    """How far an answer about a room's state can be relied on. The later ones are worse."""

    FINAL = "final"  #: it would be the same if the whole state were known
    PROVISIONAL = "provisional"  #: good enough to go on with; the resync may correct it
    UNKNOWN = "unknown"  #: not known before the resync: whoever needs it waits


class StateAnswer(NamedTuple):
    """What is known of one key of a room's state.

    :ivar event_id: the entry as far as it is known; None: there is none, or it is not known
    """

    event_id: str | None
    certainty: Certainty


class PartialJoin(NamedTuple):
    """What a server answered to a partial join, all of it judged as events before.

    :ivar join: the event by which this server joined
    :ivar state: the part of the state before it
    :ivar auth_chain: what the events of ``state``, and ``join``, depend on
    :ivar servers: those in the room before it
    """

    join: Event
    state: Iterable[Event]
    auth_chain: Iterable[Event]
    servers: frozenset[str]


class PendingResync(NamedTuple):
    """An event that is to be resynced next.

    :ivar state_needed: another server must be asked for the state before it, since it follows
        something that is not known here
    """

    event_id: str
    state_needed: bool


class ResyncChange(NamedTuple):
    """What the resync made of an event.

    :ivar was: before it
    :ivar now: after it
    """

    was: RoomJudged
    now: RoomJudged

    @property
    def wrongly_accepted(self) -> bool:
        """Whether it was accepted, and shown, and is rejected now."""
        return self.was.accepted and not self.now.accepted

    @property
    def wrongly_rejected(self) -> bool:
        """Whether it was rejected and is accepted now."""
        return not self.was.accepted and self.now.accepted

    @property
    def state_before(self) -> Delta:
        """What became known of the state before it; nothing, when it is only cited."""
        if self.was.state_before is None or self.now.state_before is None:
            return Delta({})
        return delta(self.was.state_before, self.now.state_before)


def certainty_of(key: StateKey, local_server: str) -> Certainty:
    """How far the entry of a key can be relied on while a room is known in part.

    "When is our partial state likely to be correct?" of the seed. The creation cannot change. All
    else but memberships came with the join, and only this server lets its users join. Of others'
    memberships next to nothing is known.
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
    """How far the resync of a room is, as data, which ``msgspec`` writes as JSON or MessagePack.

    With the room (:mod:`synrepl.rooms.snapshot`), it is all that :class:`PartialRoom` needs to go on, in
    another process, too.

    :ivar servers: those in the room before the join
    :ivar is_partial: whether some events are still to be resynced
    :ivar done: events that were judged again
    :ivar remote_states: the states before events, as other servers told them, that take part when those are judged again
    :ivar unconfirmed_outliers: outliers whose verdict leans on what is to be resynced
    :ivar in_cycles: events that follow one another in a circle, and come last
    """

    servers: frozenset[str]
    is_partial: bool = True
    done: set[str] = msgspec.field(default_factory=set)
    remote_states: dict[str, StateRows] = msgspec.field(default_factory=dict)
    unconfirmed_outliers: set[str] = msgspec.field(default_factory=set)
    in_cycles: set[str] = msgspec.field(default_factory=set)

    def remote_state(self, event_id: str) -> StateMap | None:
        """The state before an event as it was told, if it was."""
        rows = self.remote_states.get(event_id)
        return None if rows is None else {(kind, key): each for kind, key, each in rows}

    def finish(self) -> None:
        """There is nothing left to be resynced."""
        self.is_partial = False
        for kept in (self.done, self.remote_states, self.in_cycles, self.unconfirmed_outliers):
            kept.clear()


def join_partially(room: Room, answer: PartialJoin, local_server: str) -> PartialRoom:
    """Begin with what came of a partial join.

    :param room: one of which nothing is known yet
    :param local_server: this server's name
    :raises IncompleteAnswer: it leaves out what there is; see :func:`.send_join_response.check_send_join_response`
    :raises UnknownEvents: something that is cited is missing from the answer
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
    """A room that was joined with a part of its state, until it is resynced, and after.

    :param room: as it is known; see :func:`join_partially` for how it begins
    :param progress: of the resync; it is changed as that goes on
    :param local_server: this server's name
    """

    def __init__(self, room: Room, progress: ResyncProgress, local_server: str) -> None:
        self.room = room
        self.progress = progress
        self._local_server = local_server

    @property
    def is_partial(self) -> bool:
        """Whether some events are still to be resynced."""
        return self.progress.is_partial

    # Taking in

    def receive(self, event: Event) -> list[RoomJudged]:
        """See :meth:`Room.receive`. When it waits, :attr:`Room.missing` says for what.

        Missing events that are only cited come through :meth:`add_outliers`, those that are followed
        through :meth:`add_with_state`.
        """
        return self._in_stream(self.room.receive(event))

    def add_outliers(self, events: Iterable[Event]) -> list[RoomJudged]:
        """Take in events that others cite, in any order.

        :returns: see :meth:`Room.receive_outlier`
        :raises UnknownEvents: one that they cite is neither known nor among them, or they cite one
            another in a circle
        """
        room = self.room
        order = topological_sort(
            (each for each in events if each.event_id not in room), dependencies=auth_dependencies
        )
        if order.in_cycles:
            first = order.in_cycles[0]
            missing = ", ".join(each for each in auth_dependencies(first) if each not in room)
            raise UnknownEvents(missing=missing, room_id=first.room_id, event_id=first.event_id)
        told: list[RoomJudged] = []
        for event in order.events:
            judged = room.receive_outlier(event)
            if (
                judged
                and self.progress.is_partial
                and any(map(self._is_pending, auth_dependencies(event)))
            ):
                self.progress.unconfirmed_outliers.add(event.event_id)
            self._in_stream(judged[1:])
            told += judged
        return told

    def add_with_state(self, event: Event, state_before: StateMap) -> list[RoomJudged]:
        """Take in an event that follows something unknown, with the whole state before it.

        :param state_before: as another server told it (``/state_ids``); its events must be known
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
        """Those that came as more than outliers; what was found out of them as such is void."""
        for each in judged:
            self.progress.unconfirmed_outliers.discard(each.event.event_id)
            self.progress.done.discard(each.event.event_id)
        return judged

    # Asking

    def state_entry(self, key: StateKey, at: str | None = None) -> StateAnswer:
        """The entry of a key, and how certain that is.

        :param at: an event, for the state before it; by default, the current state
        :raises NotJudged: that event is not known
        :raises NoState: it is only cited
        """
        state, partial = self._state(at)
        return StateAnswer(
            state.get(key), certainty_of(key, self._local_server) if partial else Certainty.FINAL
        )

    def certainty(self, keys: Iterable[StateKey] | None = None, at: str | None = None) -> Certainty:
        """How certain the entries of some keys are together.

        Of the keys that authorise an event (:func:`synrepl.rooms.auth.selection.auth_event_keys`), this says whether a
        server should make that event now.

        :param keys: by default the whole state
        """
        if not self._state(at)[1]:
            return Certainty.FINAL
        if keys is None:
            return Certainty.UNKNOWN
        order = list(Certainty)
        all_of_them = [certainty_of(key, self._local_server) for key in keys]
        return max(all_of_them, key=order.index, default=Certainty.FINAL)

    def servers(self) -> tuple[frozenset[str], Certainty]:
        """The servers in the room: provisionally, those that were and those that joined since."""
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
        """The events that can be resynced now: those that lean on none that is still to be.

        From the join down: who resyncs each as it is yielded gets to the end in one go, whatever the
        order in which they came. All that came since is gone through, and the outliers that cite
        any of it, for what follows or cites a wrong verdict may be wrong, too. Where servers make
        up event IDs, events can follow one another in a circle: those, and what leans on them, come
        last, as they came.
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
        """What is judged again before it: what it follows and cites, and the state that was told."""
        yield from self._prev_event_ids(event)
        yield from auth_dependencies(event)
        for _, _, event_id in self.progress.remote_states.get(event.event_id, ()):
            yield event_id

    def _prev_event_ids(self, event: Event) -> tuple[str, ...]:
        """The events whose states make the one before it; of an outlier there is none."""
        return () if event.event_id in self.progress.unconfirmed_outliers else event.prev_event_ids

    def _is_pending(self, event_id: str) -> bool:
        """Whether an event is still to be resynced."""
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
        """Judge an event again, at the whole state before it.

        With the last one, the room is known as a whole.

        :param state_before: needed if :class:`PendingResync` says so; its events must be known
        :raises NotNext: see :meth:`pending`
        :raises NotJudged: it is not known
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
    """What a whole resync changed.

    :ivar wrongly_accepted: events that were accepted, and are rejected
    :ivar wrongly_rejected: events that were rejected, and are accepted
    :ivar current_state: what differs in the current state
    """

    wrongly_accepted: list[str]
    wrongly_rejected: list[str]
    current_state: Delta


def resync(partial: PartialRoom, states: Mapping[str, StateMap] = MappingProxyType({})) -> Resynced:
    """Resync all of a room, with everything at hand.

    :param states: the states before the events that need one
    :raises NotNext: there is an event that needs one, and has none
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
