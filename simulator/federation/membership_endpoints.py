"""Endpoints of a simulated server by which users of others join, knock, leave, and are invited."""

from __future__ import annotations

from typing import Any

import orjson

from simulator.federation.hosted_room import HostedRoom, servers_in
from simulator.federation.pure_answer import PureAnswer, RefusedRequest, raw
from simulator.federation.pure_request import Endpoint, PureRequest
from simulator.federation.room_host import RoomHost
from synrepl.rooms import (
    BadEvent,
    Event,
    EventDraft,
    StateKey,
    add_signature,
    authorising_member,
    check_on_receipt,
    event_of,
    judge,
    parse_event,
    room_version,
    rooms_that_authorise,
    server_of,
    stripped_event,
)

#: The member of a restricted join's content that names who let the user in.
_AUTHORISED_BY = "join_authorised_via_users_server"

_CREATE: StateKey = ("m.room.create", "")
_LEVELS: StateKey = ("m.room.power_levels", "")
_RULES: StateKey = ("m.room.join_rules", "")

#: State that an invitation or the answer to a knock shows of a room.
_STRIPPED = ("m.room.create", "m.room.name", "m.room.join_rules", "m.room.avatar", "m.room.topic")


class MembershipEndpoints:
    """The handshakes of memberships, of one server."""

    def __init__(self, server: RoomHost) -> None:
        self._server = server
        self.endpoints: dict[str, Endpoint] = {
            "make_join": lambda request: self._make(request, "join"),
            "make_knock": lambda request: self._make(request, "knock"),
            "make_leave": lambda request: self._make(request, "leave"),
            "send_join": self._send_join,
            "send_knock": self._send_knock,
            "send_leave": self._send_leave,
            "invite": self._invite,
        }

    def _room(self, room_id: str) -> HostedRoom:
        room = self._server.rooms.get(room_id)
        if room is None:
            raise RefusedRequest(404, "M_NOT_FOUND", "no such room")
        return room

    def _make(self, request: PureRequest, membership: str) -> PureAnswer:
        room_id, user_id = request.path
        room = self._room(room_id)
        version = room.version
        if server_of(user_id) != request.origin:
            raise RefusedRequest(403, "M_FORBIDDEN", "it is no user of yours")
        spoken = [value for name, value in request.query if name == "ver"]
        if membership != "leave" and version.name not in (spoken or ["1"]):
            raise RefusedRequest(400, "M_INCOMPATIBLE_ROOM_VERSION", room_version=version.name)
        content = {"membership": membership}
        if membership == "join":
            content |= self._authorisation(room, user_id)
        draft = EventDraft("m.room.member", user_id, content, self._server.now_ms(), user_id)
        event = self._server.builder(version.name, request.origin).build(draft, room.room)
        judged = judge(self._countersigned(event), room.room)
        refusal = judged.refusal or judged.soft_failure
        if refusal is not None:
            raise RefusedRequest(403, "M_FORBIDDEN", refusal.sentence)
        left_out = ("hashes", "signatures", "event_id")
        template = {name: value for name, value in event.fields.items() if name not in left_out}
        return PureAnswer(body={"room_version": version.name, "event": template})

    def _authorisation(self, room: HostedRoom, user_id: str) -> dict[str, str]:
        """What the content of a restricted join says of who let the user in."""
        keys = (_CREATE, _LEVELS, _RULES, ("m.room.member", user_id))
        found = {key: room.current(key) for key in keys}
        state = {key: each for key, each in found.items() if each is not None}
        allowed = rooms_that_authorise(state)
        member = state.get(("m.room.member", user_id))
        if not allowed or (member is not None and member.membership in ("join", "invite")):
            return {}
        rooms = [self._server.rooms[each] for each in allowed if each in self._server.rooms]
        if not rooms:
            raise RefusedRequest(400, "M_UNABLE_TO_AUTHORISE_JOIN")
        if not any(_has_joined(each, user_id) for each in rooms):
            raise RefusedRequest(403, "M_FORBIDDEN", "the user is in none of the rooms")
        own = [
            each.state_key
            for each in room.current_state()
            if each.type == "m.room.member"
            and each.state_key is not None
            and each.membership == "join"
            and server_of(each.state_key) == self._server.name
        ]
        authorised_by = authorising_member(state, own)
        if authorised_by is None:
            raise RefusedRequest(400, "M_UNABLE_TO_GRANT_JOIN")
        return {_AUTHORISED_BY: authorised_by}

    def _countersigned(self, event: Event) -> Event:
        """An event, signed by this server, too, if one of its users let the sender in."""
        if _AUTHORISED_BY not in event.content:
            return event
        name = self._server.name
        key = self._server.federation.keys.signing_key(name)
        return event_of(add_signature(event.fields, event.version, name, key), event.version)

    def _sent(self, request: PureRequest, membership: str) -> tuple[HostedRoom, Event]:
        """An event by which a user of the other server changes its membership; it is in the room now."""
        server = self._server
        room = self._room(request.path[0])
        try:
            sent = self._countersigned(event_of(dict(request.body), room.version))
        except BadEvent as error:
            raise RefusedRequest(400, "M_BAD_JSON", str(error)) from None
        checked = check_on_receipt(sent.raw, room.version, server.federation.keys)
        event = checked.event
        if event is None:
            reason = "" if checked.refusal is None else checked.refusal.sentence
            raise RefusedRequest(403, "M_FORBIDDEN", reason)
        is_own = event.sender == event.state_key and server_of(event.sender) == request.origin
        if event.type != "m.room.member" or event.membership != membership or not is_own:
            raise RefusedRequest(400, "M_BAD_JSON", f"that is no {membership}")
        before = room.servers()
        room.room.receive(event)
        if event.event_id not in room or not room.room[event.event_id].passed_all_checks:
            raise RefusedRequest(403, "M_FORBIDDEN", "it was rejected")
        server.outgoing.add(event, before - {request.origin})
        return room, event

    def _send_join(self, request: PureRequest) -> PureAnswer:
        room, event = self._sent(request, "join")
        omits = request.parameters.get("omit_members") == "true"
        before = room.state_before(event.event_id)
        state = [each for each in before if not (omits and each.type == "m.room.member")]
        listed = {each.event_id for each in state}
        chain = [each for each in room.auth_chain([*state, event]) if each.event_id not in listed]
        body: dict[str, Any] = {"members_omitted": omits, "origin": self._server.name}
        if omits:
            body["servers_in_room"] = sorted(servers_in(before))
        body["event"] = event.fields
        return PureAnswer(body=body, events={"state": raw(state), "auth_chain": raw(chain)})

    def _send_knock(self, request: PureRequest) -> PureAnswer:
        room, _ = self._sent(request, "knock")
        return PureAnswer(events={"knock_room_state": self.stripped_state(room)})

    def _send_leave(self, request: PureRequest) -> PureAnswer:
        self._sent(request, "leave")
        return PureAnswer()

    def _invite(self, request: PureRequest) -> PureAnswer:
        server = self._server
        version = room_version(request.body["room_version"])
        event = parse_event(orjson.dumps(request.body["event"]), version)
        if event.state_key is None or server_of(event.state_key) != server.name:
            raise RefusedRequest(403, "M_FORBIDDEN", "it is no user of mine")
        key = server.federation.keys.signing_key(server.name)
        signed = event_of(add_signature(event.fields, version, server.name, key), version)
        server.invites.append(signed)
        return PureAnswer(body={"event": signed.fields})

    def stripped_state(self, room: HostedRoom) -> list[bytes]:
        """What others may know of a room before they are in it."""
        shown = [each for each in room.current_state() if each.type in _STRIPPED]
        return [stripped_event(each.raw) for each in shown]


def _has_joined(room: HostedRoom, user_id: str) -> bool:
    found = room.current(("m.room.member", user_id))
    return found is not None and found.membership == "join"
