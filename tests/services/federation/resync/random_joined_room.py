"""A random room that this server joins partially, with events that come before and after, and answers about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from random import Random
from typing import Any
from urllib.parse import unquote

from simulator.federation.pure_answer import PureAnswer, RefusedRequest
from simulator.rooms.random_rooms import RestlessRoom
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest
from synrepl.rooms import (
    Event,
    PartialJoin,
    ReceiptResult,
    ReceiptVerdict,
    Room,
    RoomVersion,
    StateKey,
    StateMap,
    auth_dependencies,
    parse_event,
    topological_sort,
)
from synrepl.services.federation.verifying import ChoosesEvents
from synrepl.storage.rooms.tables.incoming import IncomingEvent

#: This server in these rooms, and its user.
SERVER, USER = "d", "@erin:d"


class JoiningRoom(RestlessRoom):
    """A random room in which Erin joins at some point.

    Some events cite memberships or power levels that have been replaced since, as those of servers that cheat do: whether
    they are allowed depends on the state before them.
    """

    def _note(self, event: Event) -> None:
        super()._note(event)
        if event.type in ("m.room.member", "m.room.power_levels"):
            self._earlier.setdefault((event.type, event.state_key), []).append(event)

    @cached_property
    def _earlier(self) -> dict[tuple[str, str | None], list[Event]]:
        return {}

    def _contents(self, kind: str, sender: str, follows: list[Event]) -> tuple[Any, Any]:
        contents, more = super()._contents(kind, sender, follows)
        while contents[5] == USER:  # nothing of the room is completed when she is out of it
            contents, more = super()._contents("topic", sender, follows)
        event_type, content, follows, cites, sender, key = contents
        if self._rng.random() < 0.3:
            cites = [
                self._rng.choice(self._earlier.get((each.type, each.state_key), [each]))
                for each in cites
            ]
        elif event_type != "m.room.member" and (joins := self._joins_of_who_left()):
            cheat = self._rng.choice(joins)
            sender = cheat.sender
            cites = [each for each in cites if each.type != "m.room.member"] + [cheat]
        return (event_type, content, follows, cites, sender, key), more

    def _joins_of_who_left(self) -> list[Event]:
        """Joins of users who are not in the room any more, as far as one of its branches tells."""
        return [
            each
            for (kind, user), events in self._earlier.items()
            if kind == "m.room.member" and self._last[kind, user].membership != "join"
            for each in events
            if each.membership == "join" and each.sender == user
        ]

    def join(self) -> Event:
        """Erin's join, on top of some of the newest events."""
        rng = self._rng
        newest = self.events[-4:]
        follows = rng.sample(newest, rng.randint(1, 2))
        cites = [
            self._last[key]
            for key in (
                ("m.room.create", ""),
                ("m.room.power_levels", ""),
                ("m.room.join_rules", ""),
                ("m.room.member", USER),
            )
            if key in self._last
        ]
        event = self.maker.event(
            "m.room.member", {"membership": "join"}, follows, cites, USER, USER
        )
        return event

    def keep(self, event: Event) -> None:
        """Let the next events follow an event that was made apart, mostly only that."""
        if self._rng.random() < 0.7:
            self.events.clear()
        self.events.append(event)
        self._note(event)


class RandomJoinedRoom:
    """The room as a server that has everything knows it.

    :ivar whole: that room
    :ivar join: what the other server answered to our join
    :ivar here: the events that our server has, with their states or as outliers
    """

    def __init__(self, seed: int, version: str) -> None:
        self.rng = Random(seed)
        self.here: dict[str, Event] = {}
        self.outliers: set[str] = set()
        #: The states with which events came that follow something unknown.
        self.reported: dict[str, StateMap] = {}
        self.unsent: list[Event] = []
        join = None
        while join is None:
            made = self._made = JoiningRoom(self.rng, version, f"joined{seed}")
            made.more(self.rng.randint(5, 40))
            self.whole = Room(made.version)
            for each in made.events:
                self.whole.receive(each, live=False)
            join = self._joined()
        self.join = self._answer(join)

    @property
    def version(self) -> RoomVersion:
        return self._made.version

    def _joined(self) -> Event | None:
        """Erin's join, if the room lets her in soon."""
        for _ in range(10):
            join = self._made.join()
            (judged,) = self.whole.receive(join, live=False)
            has_levels = ("m.room.power_levels", "") in self.whole.state_before(join.event_id)
            if judged.accepted and has_levels:  # others are not asked for, and would be refused
                return join
            self._made.more(1)
            self.whole.receive(self._made.events[-1], live=False)
        return None

    def _answer(self, join: Event) -> PartialJoin:
        """The answer to the join."""
        self._made.keep(join)
        state = [self.whole[each].event for each in self.whole.state_before(join.event_id).values()]
        partial = [each for each in state if each.type != "m.room.member"]
        chain = self.chain([*partial, join])
        listed = {each.event_id for each in partial}
        servers = frozenset({"a", "b"})
        answer = PartialJoin(join, partial, [e for e in chain if e.event_id not in listed], servers)
        self.outliers |= {each.event_id for each in [*answer.state, *answer.auth_chain]}
        self.here |= {e.event_id: e for e in [*answer.state, *answer.auth_chain, join]}
        return answer

    def chain(self, events: Iterable[Event]) -> list[Event]:
        """The auth chains of events, causes first."""
        found: dict[str, Event] = {}
        ahead = [each for event in events for each in auth_dependencies(event)]
        while ahead:
            event_id = ahead.pop()
            if event_id not in found:
                found[event_id] = self.whole[event_id].event
                ahead += auth_dependencies(found[event_id])
        order = topological_sort(found.values(), dependencies=auth_dependencies)
        return order.events

    def more(self, count: int) -> None:
        """Make events; they wait to be sent to us."""
        for event in self._made.more(count):
            self.whole.receive(event, live=False)
            if event.event_id in self.whole:
                self.unsent.append(event)

    def some(self, count: int) -> list[IncomingEvent]:
        """Some of the events that wait, with what they need: their auth chains, or the states before them."""
        given: list[IncomingEvent] = []
        for _ in range(min(count, len(self.unsent))):
            first = 1 if self.rng.random() < 0.8 else 4
            event = self.unsent.pop(self.rng.randrange(min(first, len(self.unsent))))
            missing = [each for each in event.prev_event_ids if not self._has_state(each)]
            state: dict[StateKey, str] | None = None
            needed = [event]
            if missing:
                state = self.whole.state_before(event.event_id).as_dict()
                self.reported[event.event_id] = state
                needed += [self.whole[each].event for each in state.values()]
            chain = {each.event_id: each for each in [*self.chain(needed), *needed[1:]]}
            order = topological_sort(chain.values(), dependencies=auth_dependencies).events
            for each in order:
                if each.event_id not in self.here:
                    self.here[each.event_id] = each
                    self.outliers.add(each.event_id)
                    given.append(IncomingEvent(each, outlier=True))
            self.here[event.event_id] = event
            self.outliers.discard(event.event_id)
            given.append(IncomingEvent(event, live=False, state_before=state))
        return given

    def _has_state(self, event_id: str) -> bool:
        return event_id in self.here and event_id not in self.outliers

    def stored(self, outliers: Iterable[str]) -> Room:
        """The room in memory that has what our server has, and knows all states.

        :param outliers: those of our server, which may have fetched more
        """
        for each in outliers:
            self.here.setdefault(each, self.whole[each].event)
        room, here = Room(self.version), self.here
        order = topological_sort(
            here.values(),
            dependencies=lambda event: (
                *auth_dependencies(event),
                *(() if event.event_id in self.outliers else event.prev_event_ids),
            ),
        )
        self.outliers |= set(outliers)
        for event in order.events:
            if event.event_id in self.outliers:
                room.receive_outlier(event)
            elif event.event_id not in self.reported and all(
                room.has_state(each) for each in event.prev_event_ids
            ):
                room.receive(event, live=False)
            else:
                state = self.whole.state_before(event.event_id).as_dict()
                for each in state.values():
                    if each not in room:
                        room.receive_outlier(self.whole[each].event)
                room.receive_with_state(event, state)
        return room


class RandomRoomServer:
    """A server that knows a random room."""

    def __init__(self, room: RandomJoinedRoom) -> None:
        self._room = room

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        _, _, _, name, *path = map(unquote, request.path.strip("/").split("/"))
        try:
            answer = self._answer(name, path, dict(request.query))
        except RefusedRequest as refused:
            answer = refused.answer
        return FederationAnswer(answer.status, BytesBody(answer.encoded()))

    def _answer(self, name: str, path: Sequence[str], query: dict[str, str]) -> PureAnswer:
        whole = self._room.whole
        event_id = query.get("event_id", path[0])
        if event_id not in whole:
            raise RefusedRequest(404, "M_NOT_FOUND")
        if name == "event":
            return PureAnswer(events={"pdus": [whole[event_id].event.raw]})
        state = [whole[each].event for each in whole.state_before(event_id).values()]
        chain = self._room.chain(state)
        if name == "state_ids":
            ids = {"pdu_ids": state, "auth_chain_ids": chain}
            return PureAnswer(body={key: [e.event_id for e in each] for key, each in ids.items()})
        raws = {"pdus": state, "auth_chain": chain}
        return PureAnswer(events={key: [e.raw for e in each] for key, each in raws.items()})


class UncheckedEvents:
    """Lets events through that have no valid signatures."""

    async def verify(
        self,
        raws: Sequence[bytes],
        version: RoomVersion,
        *,
        origin: str | None = None,
        choose: ChoosesEvents | None = None,
    ) -> Sequence[ReceiptResult]:
        events = [parse_event(each, version) for each in raws]
        if choose is not None:
            wanted = await choose({each.event_id for each in events})
            events = [each for each in events if each.event_id in wanted]
        return [ReceiptResult(ReceiptVerdict.ACCEPT, each, None) for each in events]
