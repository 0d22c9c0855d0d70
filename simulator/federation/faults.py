"""What a simulated server does wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.pure_answer import PureAnswer, RefusedRequest
from simulator.federation.pure_request import PureRequest
from simulator.federation.room_host import RoomHost
from simulator.federation.server_keys import wrong_key
from synrepl.rooms import (
    Event,
    EventDraft,
    event_of,
    parse_event,
    room_version,
    server_of,
    sign_event,
)

#: Arrays of events, and of IDs, that make up a state.
_STATES, _STATE_IDS = ("state", "pdus"), ("pdu_ids",)

#: Depth of a nested answer, names in a long list of servers, and parents in a template with very many.
NESTED, MANY_SERVERS, MANY_PARENTS = 200_000, 100_000, 10_000


class FaultKind(StrEnum):
    """What goes wrong."""

    NO_ANSWER = "no answer"
    FORBIDDEN = "403"
    NOT_FOUND = "404"
    BROKEN = "500"
    TOO_LARGE = "more bytes than anyone reads"
    TRUNCATED = "half an answer"
    GARBAGE = "no JSON"
    NO_OBJECT = "an array instead of an object"
    NESTED = "arrays nested very deep"
    EMPTY = "no events at all"
    OTHER_ROOM = "the state of another room"
    NO_CREATE = "a state without m.room.create"
    NO_POWER_LEVELS = "a state without m.room.power_levels"
    NO_JOIN_RULES = "a state without m.room.join_rules"
    NO_MEMBERS = "a full state without members"
    NO_AUTH_CHAIN = "no auth chain"
    HALF_THE_EVENTS = "every second event is missing"
    UNKNOWN_EVENTS = "IDs of events that nobody has"
    CONTRADICTORY = "two events for one key of a state"
    UNSIGNED = "events without signatures"
    WRONGLY_SIGNED = "events signed with another key"
    WRONG_HASH = "events with another content than was hashed"
    CYCLE = "events that cite one another"
    NO_SERVERS = "members are left out, and no servers are named"
    MANY_SERVERS = "a very long list of servers"
    MANY_PARENTS = "a template with very many prev events"


@dataclass
class ServerFault:
    """A fault of one endpoint.

    :ivar endpoint: such as ``state_ids``; ``*`` for all
    :ivar times: how often it happens; None: always
    :ivar spared: servers to which it does not happen
    :ivar rooms: rooms of requests to which it happens; empty: all
    """

    endpoint: str
    kind: FaultKind
    times: int | None = None
    spared: Collection[str] = ()
    rooms: Collection[str] = ()

    def takes(self, request: PureRequest) -> bool:
        """Whether it happens now."""
        if request.origin in self.spared:
            return False
        if self.rooms and not set(self.rooms).intersection(request.path):
            return False
        if self.endpoint not in ("*", request.endpoint) or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True

    def applied(self, server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
        """The answer with the fault."""
        return _FAULTS[self.kind](server, request, answer)


_Apply = Callable[[RoomHost, PureRequest, PureAnswer], PureAnswer]


def _raw(data: bytes) -> _Apply:
    return lambda server, request, answer: PureAnswer(raw=data)


def _refused(status: int, errcode: str) -> _Apply:
    return lambda server, request, answer: RefusedRequest(status, errcode).answer


def _truncated(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    data = answer.encoded()
    return PureAnswer(answer.status, raw=data[: len(data) // 2])


def _empty(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    body = {name: [] if isinstance(each, list) else each for name, each in answer.body.items()}
    return PureAnswer(answer.status, body, {name: [] for name in answer.events})


def _without(is_left_out: Callable[[Event], bool], *, in_chains: bool = False) -> _Apply:
    """Leave events out of states, and, if asked for, of auth chains."""

    def apply(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
        room = server.rooms[request.path[0]]

        def filtered(name: str, each: Any) -> Any:
            is_state = name in (*_STATES, *_STATE_IDS)
            if not is_state and not (in_chains and name.startswith("auth_chain")):
                return each
            return [one for one in each if not is_left_out(_event_of(room, one))]

        body = {n: filtered(n, e) if isinstance(e, list) else e for n, e in answer.body.items()}
        return PureAnswer(
            answer.status, body, {n: filtered(n, each) for n, each in answer.events.items()}
        )

    return apply


def _event_of(room: HostedRoom, event: bytes | str) -> Event:
    return room.event(event) if isinstance(event, str) else parse_event(event, room.version)


def _is(kind: str) -> Callable[[Event], bool]:
    return lambda event: event.type == kind and event.state_key == ""


def _half(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    events = {name: each[::2] for name, each in answer.events.items()}
    body = {n: e[::2] if isinstance(e, list) else e for n, e in answer.body.items()}
    return PureAnswer(answer.status, body, events)


def _unknown(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    ids = [f"$unheard-of-{number:032}" for number in range(3)]
    body = {n: [*e, *ids] if isinstance(e, list) else e for n, e in answer.body.items()}
    return PureAnswer(answer.status, body, answer.events)


def _without_chain(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    body = {n: [] if n == "auth_chain_ids" else e for n, e in answer.body.items()}
    events = {n: [] if n == "auth_chain" else e for n, e in answer.events.items()}
    return PureAnswer(answer.status, body, events)


def _changed(change: Callable[[RoomHost, dict[str, Any], Event], dict[str, Any]]) -> _Apply:
    """Change every event of an answer."""

    def apply(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
        version = _version_of(server, request)

        def changed(data: bytes) -> bytes:
            event = parse_event(data, room_version(version))
            return orjson.dumps(change(server, dict(event.fields), event))

        events = {name: list(map(changed, each)) for name, each in answer.events.items()}
        return PureAnswer(answer.status, answer.body, events)

    return apply


def _version_of(server: RoomHost, request: PureRequest) -> str:
    """The version of the room that a request is about; ``event`` names none."""
    named = server.rooms.get(request.path[0])
    room = next(iter(server.rooms.values())) if named is None else named
    return room.version.name


def _unsigned(server: RoomHost, fields: dict[str, Any], event: Event) -> dict[str, Any]:
    return fields | {"signatures": {}}


def _wrongly_signed(server: RoomHost, fields: dict[str, Any], event: Event) -> dict[str, Any]:
    bare = {name: each for name, each in fields.items() if name not in ("signatures", "hashes")}
    return sign_event(bare, event.version, server_of(event.sender), wrong_key())


def _wrong_hash(server: RoomHost, fields: dict[str, Any], event: Event) -> dict[str, Any]:
    return fields | {"content": {**event.content, "org.example.added": True}}


def _other_room(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    mine = server.rooms[request.path[0]]
    other = next(each for each in server.rooms.values() if each is not mine)
    state = other.current_state()
    chain = other.auth_chain(state)
    events, body = dict(answer.events), dict(answer.body)
    for name in events:
        events[name] = [each.raw for each in (chain if name == "auth_chain" else state)]
    for name in ("pdu_ids", "auth_chain_ids"):
        if name in body:
            body[name] = [e.event_id for e in (chain if name == "auth_chain_ids" else state)]
    return PureAnswer(answer.status, body, events)


def _contradictory(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    """Add an earlier event of a key that has a later one."""
    room = server.rooms[request.path[0]]
    current = room.room.current_state()
    older = next(
        each.event
        for each in room.room
        if each.event.state_key is not None
        and each.event.state_key != ""
        and current.get((each.event.type, each.event.state_key)) != each.event.event_id
    )
    events, body = dict(answer.events), dict(answer.body)
    for name in _STATES:
        if name in events:
            events[name] = [*events[name], older.raw]
    for name in _STATE_IDS:
        if name in body:
            body[name] = [*body[name], older.event_id]
    return PureAnswer(answer.status, body, events)


def _cycle(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    """Add two events that cite one another; that takes a version in which servers choose event IDs."""
    room = server.rooms[request.path[0]]
    ids = [f"${name}:{server.name}" for name in ("one", "two")]
    key = server.federation.keys.signing_key(server.name)
    made: list[bytes] = []
    for number, event_id in enumerate(ids):
        draft = EventDraft("org.example.cycle", f"@a:{server.name}", {}, server.now_ms(), "")
        event = server.builder(room.version.name).build(draft, room.room)
        bare = {n: e for n, e in event.fields.items() if n not in ("signatures", "hashes")}
        bare |= {"event_id": event_id, "auth_events": [[ids[1 - number], {}]]}
        made.append(event_of(sign_event(bare, room.version, server.name, key), room.version).raw)
    events = {name: [*each, *made] for name, each in answer.events.items()}
    body = {n: [*e, *ids] if isinstance(e, list) else e for n, e in answer.body.items()}
    return PureAnswer(answer.status, body, events)


def _with_body(members: Callable[[], dict[str, Any]]) -> _Apply:
    return lambda server, request, answer: PureAnswer(
        answer.status, answer.body | members(), answer.events
    )


def _no_servers(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    body = {name: each for name, each in answer.body.items() if name != "servers_in_room"}
    return PureAnswer(answer.status, body, answer.events)


def _many_parents(server: RoomHost, request: PureRequest, answer: PureAnswer) -> PureAnswer:
    ids = [f"$parent-{number:036}" for number in range(MANY_PARENTS)]
    event = answer.body.get("event", {}) | {"prev_events": ids}
    return PureAnswer(answer.status, answer.body | {"event": event})


def _names(count: int) -> list[str]:
    return [f"s{number}.example" for number in range(count)]


_FAULTS: dict[FaultKind, _Apply] = {
    FaultKind.NO_ANSWER: lambda server, request, answer: PureAnswer(is_lost=True),
    FaultKind.FORBIDDEN: _refused(403, "M_FORBIDDEN"),
    FaultKind.NOT_FOUND: _refused(404, "M_NOT_FOUND"),
    FaultKind.BROKEN: _refused(500, "M_UNKNOWN"),
    FaultKind.TOO_LARGE: lambda server, request, answer: PureAnswer(is_too_large=True),
    FaultKind.TRUNCATED: _truncated,
    FaultKind.GARBAGE: _raw(b"\xff\x00 no JSON"),
    FaultKind.NO_OBJECT: _raw(b"[]"),
    FaultKind.NESTED: _raw(b'{"pdus": ' + b"[" * NESTED + b"]" * NESTED + b"}"),
    FaultKind.EMPTY: _empty,
    FaultKind.OTHER_ROOM: _other_room,
    FaultKind.NO_CREATE: _without(_is("m.room.create"), in_chains=True),
    FaultKind.NO_POWER_LEVELS: _without(_is("m.room.power_levels")),
    FaultKind.NO_JOIN_RULES: _without(_is("m.room.join_rules")),
    FaultKind.NO_MEMBERS: _without(lambda event: event.type == "m.room.member"),
    FaultKind.NO_AUTH_CHAIN: _without_chain,
    FaultKind.HALF_THE_EVENTS: _half,
    FaultKind.UNKNOWN_EVENTS: _unknown,
    FaultKind.CONTRADICTORY: _contradictory,
    FaultKind.UNSIGNED: _changed(_unsigned),
    FaultKind.WRONGLY_SIGNED: _changed(_wrongly_signed),
    FaultKind.WRONG_HASH: _changed(_wrong_hash),
    FaultKind.CYCLE: _cycle,
    FaultKind.NO_SERVERS: _no_servers,
    FaultKind.MANY_SERVERS: _with_body(lambda: {"servers_in_room": _names(MANY_SERVERS)}),
    FaultKind.MANY_PARENTS: _many_parents,
}
