"""A server of rooms in memory that speaks the server-server protocol.

It does what an honest resident server does, judged by the rules of :mod:`synrepl.rooms`; its *faults*
(:mod:`simulator.federation.faults`) make it lie or fail. Source of the endpoints:
https://spec.matrix.org/v1.16/server-server-api/
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from simulator.federation.faults import ServerFault
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.joining import join_room
from simulator.federation.membership_endpoints import MembershipEndpoints
from simulator.federation.outgoing import OutgoingEvents
from simulator.federation.pure_answer import PureAnswer, RefusedRequest, raw
from simulator.federation.pure_request import Endpoint, PureRequest
from simulator.federation.server_keys import KEY_ID
from synrepl.federation.errors import AnswerTooLarge
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest
from synrepl.rooms import (
    BadEvent,
    Event,
    EventBuilder,
    EventDraft,
    OtherRoom,
    check_on_receipt,
    parse_event,
    room_version,
    server_of,
    sign_json,
)

#: Events in an answer to ``backfill`` and ``get_missing_events`` at most.
MAX_EVENTS = 100


class PureServer:
    """A server. It is registered with its federation when it is made.

    Its users, and those of servers that nobody registered, act by :meth:`send`.

    :ivar rooms: by ID
    :ivar aliases: room IDs by alias
    :ivar profiles: by user
    :ivar invites: events by which its users were invited
    :ivar edus: that it received, in order
    :ivar faults: what goes wrong; the first that fits an endpoint counts
    :ivar outgoing: sends its events to other servers
    """

    def __init__(self, name: str, federation: InMemoryFederation) -> None:
        self.name = name
        self.federation = federation
        self.rooms: dict[str, HostedRoom] = {}
        self.aliases: dict[str, str] = {}
        self.profiles: dict[str, Mapping[str, Any]] = {}
        self.invites: list[Event] = []
        self.edus: list[Mapping[str, Any]] = []
        self.faults: list[ServerFault] = []
        self.outgoing = OutgoingEvents(name, federation)
        self._transactions: dict[tuple[str, str], PureAnswer] = {}
        memberships = MembershipEndpoints(self)
        self._endpoints: dict[str, Endpoint] = {
            "state": self._state,
            "state_ids": self._state_ids,
            "event": self._event,
            "event_auth": self._event_auth,
            "backfill": self._backfill,
            "get_missing_events": self._missing_events,
            "send": self._send,
            "query": self._query,
            "user": self._user_devices,
            "keys": self._server_keys,
            **memberships.endpoints,
        }
        federation.register(name, self)

    # -- what its users do ----------------------------------------------------------------

    def now_ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return int(self.federation.scheduler.seconds() * 1000)

    def builder(self, version: str, server: str | None = None) -> EventBuilder:
        """Builds events of a server, by default of this one."""
        server = server or self.name
        return EventBuilder(room_version(version), server, self.federation.keys.signing_key(server))

    def create_room(
        self,
        version: str,
        creator: str,
        *,
        name: str = "room",
        join_rule: str = "public",
        levels: Mapping[str, Any] | None = None,
    ) -> HostedRoom:
        """Create a room with its creator in it.

        :param name: unique among the rooms of the server
        """
        made = room_version(version)
        room = HostedRoom(made)
        content: dict[str, Any] = {"room_version": version, "org.example.name": name}
        if not made.creator_is_sender:
            content["creator"] = creator
        draft = EventDraft("m.room.create", creator, content, self.now_ms(), "")
        room_id = None if made.room_id_is_create_hash else f"!{name}:{self.name}"
        create = self.builder(version).create(draft, room_id)
        room.room.receive(create)
        self.rooms[room.room_id] = room
        users = {} if made.creators_have_infinite_power else {creator: 100}
        self.send(room.room_id, "m.room.member", creator, {"membership": "join"}, creator)
        self.send(room.room_id, "m.room.power_levels", creator, levels or {"users": users}, "")
        self.send(room.room_id, "m.room.join_rules", creator, {"join_rule": join_rule}, "")
        return room

    def send(
        self,
        room_id: str,
        kind: str,
        sender: str,
        content: Mapping[str, Any],
        state_key: str | None = None,
        *,
        redacts: str | None = None,
        follows: Collection[str] | None = None,
    ) -> Event:
        """Have a user send an event, of this server or of one that nobody registered.

        Whether the rules allow it is not asked. It waits in :attr:`outgoing` for the other servers.

        :param follows: its prev events; by default the forward extremities
        """
        room = self.rooms[room_id]
        draft = EventDraft(kind, sender, content, self.now_ms(), state_key, redacts)
        builder = self.builder(room.version.name, server_of(sender))
        if follows is None:
            event = builder.build(draft, room.room)
        else:
            event = self._built_on(room, builder, draft, follows)
        self.receive(room, event)
        return event

    def _built_on(
        self, room: HostedRoom, builder: EventBuilder, draft: EventDraft, follows: Collection[str]
    ) -> Event:
        state = room.room.state_after(follows)
        cited = [state[key] for key in builder.auth_keys(draft) if key in state]
        return builder.assemble(
            draft, room.room_id, [room.event(e) for e in follows], [room.event(e) for e in cited]
        )

    async def join(self, room_id: str, user_id: str, via: str) -> HostedRoom:
        """Have a user of this server join a room of others."""
        return await join_room(self, room_id, user_id, via)

    def receive(self, room: HostedRoom, event: Event) -> None:
        """Take an event of one of its own users, and let the other servers have it."""
        servers = room.servers()
        room.room.receive(event)
        self.outgoing.add(event, servers | room.servers())

    # -- requests -------------------------------------------------------------------------

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        """See :class:`~simulator.federation.in_memory.FederationServer`."""
        asked = PureRequest.of(origin, request)
        try:
            answer = await self._answer(asked)
        except RefusedRequest as refused:
            answer = refused.answer
        fault = next((each for each in self.faults if each.takes(asked)), None)
        if fault is not None:
            answer = fault.applied(self, asked, answer)
        if answer.is_lost:
            return None
        if answer.is_too_large:
            where = f"the answer of {self.name} to {request.subject}"
            raise AnswerTooLarge(where=where, limit=request.max_bytes)
        return FederationAnswer(answer.status, BytesBody(answer.encoded()))

    async def _answer(self, request: PureRequest) -> PureAnswer:
        endpoint = self._endpoints.get(request.endpoint)
        if endpoint is None:
            raise RefusedRequest(404, "M_UNRECOGNIZED")
        found = endpoint(request)
        return found if isinstance(found, PureAnswer) else await found

    def room_for(self, origin: str, room_id: str) -> HostedRoom:
        """A room that another server asks about.

        :raises RefusedRequest: there is no such room, or that server is not in it
        """
        room = self.rooms.get(room_id)
        if room is None:
            raise RefusedRequest(404, "M_NOT_FOUND", "no such room")
        if origin not in room.servers():
            raise RefusedRequest(403, "M_FORBIDDEN", f"{origin} is not in the room")
        return room

    def known_event(self, room: HostedRoom, event_id: str) -> Event:
        """An event of a room, with its state.

        :raises RefusedRequest: it is not here
        """
        if not room.room.has_state(event_id):
            raise RefusedRequest(404, "M_NOT_FOUND", "no such event")
        return room.event(event_id)

    def _state(self, request: PureRequest) -> PureAnswer:
        state, chain = self._state_at(
            request.origin, request.path[0], request.parameters["event_id"]
        )
        return PureAnswer(events={"pdus": raw(state), "auth_chain": raw(chain)})

    def _state_ids(self, request: PureRequest) -> PureAnswer:
        state, chain = self._state_at(
            request.origin, request.path[0], request.parameters["event_id"]
        )
        return PureAnswer(
            body={
                "pdu_ids": [each.event_id for each in state],
                "auth_chain_ids": [each.event_id for each in chain],
            }
        )

    def _state_at(
        self, origin: str, room_id: str, event_id: str
    ) -> tuple[list[Event], list[Event]]:
        room = self.room_for(origin, room_id)
        self.known_event(room, event_id)
        state = room.state_before(event_id)
        return state, room.auth_chain(state)

    def _event(self, request: PureRequest) -> PureAnswer:
        for room in self.rooms.values():
            if request.path[0] in room:
                self.room_for(request.origin, room.room_id)
                return self._transaction([room.event(request.path[0])])
        raise RefusedRequest(404, "M_NOT_FOUND", "no such event")

    def _transaction(self, events: Sequence[Event]) -> PureAnswer:
        head = {"origin": self.name, "origin_server_ts": self.now_ms()}
        return PureAnswer(body=head, events={"pdus": raw(events)})

    def _event_auth(self, request: PureRequest) -> PureAnswer:
        room = self.room_for(request.origin, request.path[0])
        event_id = request.path[1]
        if event_id not in room:
            raise RefusedRequest(404, "M_NOT_FOUND", "no such event")
        return PureAnswer(events={"auth_chain": raw(room.auth_chain([room.event(event_id)]))})

    def _backfill(self, request: PureRequest) -> PureAnswer:
        room = self.room_for(request.origin, request.path[0])
        limit = int(request.parameters.get("limit", "10"))
        wanted = [value for name, value in request.query if name == "v"]
        return self._transaction(room.backfill(wanted, min(limit, MAX_EVENTS)))

    def _missing_events(self, request: PureRequest) -> PureAnswer:
        room, body = self.room_for(request.origin, request.path[0]), request.body
        found = room.missing(
            body["earliest_events"],
            body["latest_events"],
            min(body.get("limit", 10), MAX_EVENTS),
            body.get("min_depth", 0),
        )
        return PureAnswer(events={"events": raw(found)})

    async def _send(self, request: PureRequest) -> PureAnswer:
        place = request.origin, request.path[0]
        if place not in self._transactions:
            self.edus += request.body.get("edus", [])
            results: dict[str, Any] = {}
            for pdu in request.body["pdus"]:
                event_id, error = await self._take_in(request.origin, pdu)
                results[event_id] = {} if error is None else {"error": error}
            self._transactions[place] = PureAnswer(body={"pdus": results})
        return self._transactions[place]

    async def _take_in(self, origin: str, pdu: Mapping[str, Any]) -> tuple[str, str | None]:
        """Take in an event that was sent; returns its ID, and why not."""
        encoded = PureAnswer(body=dict(pdu)).encoded()
        room = self.rooms.get(pdu.get("room_id", ""))
        if room is None:
            return str(pdu.get("event_id", "?")), "no such room"
        try:
            event_id = parse_event(encoded, room.version).event_id
        except BadEvent as error:
            return "?", str(error)
        checked = check_on_receipt(encoded, room.version, self.federation.keys)
        if checked.event is None:
            return event_id, "it was dropped" if checked.refusal is None else str(checked.refusal)
        try:
            room.room.receive(checked.event)
        except OtherRoom as error:
            return event_id, str(error)
        if room.room.missing:
            await self.outgoing.fill_gap(room, checked.event, origin)
        return event_id, None

    def _query(self, request: PureRequest) -> PureAnswer:
        asked = request.parameters
        if request.path[0] == "directory":
            room_id = self.aliases.get(asked.get("room_alias", ""))
            if room_id is None:
                raise RefusedRequest(404, "M_NOT_FOUND", "no such alias")
            servers = sorted(self.rooms[room_id].servers())
            return PureAnswer(body={"room_id": room_id, "servers": servers})
        if request.path[0] == "profile" and asked.get("user_id") in self.profiles:
            return PureAnswer(body=dict(self.profiles[asked["user_id"]]))
        raise RefusedRequest(404, "M_NOT_FOUND", "no such user")

    def _user_devices(self, request: PureRequest) -> PureAnswer:
        return PureAnswer(body={"user_id": request.path[1], "stream_id": 1, "devices": []})

    def _server_keys(self, request: PureRequest) -> PureAnswer:
        keys = self.federation.keys
        published = {
            "server_name": self.name,
            "valid_until_ts": self.now_ms() + 86_400_000,
            "verify_keys": {KEY_ID: {"key": keys.public_key(self.name)}},
            "old_verify_keys": {},
        }
        return PureAnswer(body=sign_json(published, self.name, keys.signing_key(self.name)))
