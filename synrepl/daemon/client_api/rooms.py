"""Endpoints that create rooms, change memberships, and name rooms by aliases.

Source: https://spec.matrix.org/v1.16/client-server-api/#rooms-1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from synrepl.adapters.http.messages import HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core.clock import Scheduler
from synrepl.core.concurrent import uncancelled
from synrepl.daemon.assemble.rooms import RoomSending
from synrepl.daemon.client_api.endpoints import ClientHandle, ClientRequest, Endpoints
from synrepl.daemon.client_api.sending import positioned, sent_answer
from synrepl.rooms import check_user_id
from synrepl.services.rooms.sending.memberships import ChangesMemberships
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.storage.rooms.tables.aliases import UnknownAlias
from synrepl.storage.rooms.tables.sent_events import SentEvent


class _Reason(msgspec.Struct):
    """The body of requests that may have a reason."""

    reason: str | None = None

    @property
    def content(self) -> dict[str, Any]:
        """The members of the membership event."""
        return {} if self.reason is None else {"reason": self.reason}


class _Target(_Reason):
    """The body of requests about another user."""

    user_id: str = msgspec.field(default="")


class _Upgrade(msgspec.Struct):
    """The body of an upgrade."""

    new_version: str


class _AliasTarget(msgspec.Struct):
    """The body of a request that adds an alias."""

    room_id: str


def room_routes_of_clients(
    endpoints: Endpoints,
    rooms: RoomSending,
    memberships: ChangesMemberships,
    scheduler: Scheduler,
) -> list[Route]:
    """The endpoints that change rooms."""
    changes = rooms.changes

    def to_the_end(handle: ClientHandle) -> ClientHandle:
        """What it has begun it ends, also if the client is gone."""

        async def handle_all(request: ClientRequest) -> HttpAnswer:
            return await uncancelled(scheduler, f"request {request.uri}", handle(request))

        return handle_all

    def asks_others(path: str, handle: ClientHandle) -> list[Route]:
        """An endpoint that may ask other servers."""
        return endpoints.post(path, to_the_end(handle), waits=True)

    async def create(request: ClientRequest) -> HttpAnswer:
        room_id, last = await memberships.create(request.identity, request.body_as(NewRoom))
        return positioned(json_answer({"room_id": room_id}), last)

    async def upgrade(request: ClientRequest) -> HttpAnswer:
        version = request.body_as(_Upgrade).new_version
        room_id, last = await changes.upgrade(request.identity, request.path["room"], version)
        return positioned(json_answer({"replacement_room": room_id}), last)

    async def join(request: ClientRequest) -> HttpAnswer:
        content = request.body_as(_Reason).content
        room_id, sent = await memberships.join(
            request.identity, request.path["room"], request.via, content
        )
        return positioned(json_answer({"room_id": room_id}), sent)

    async def knock(request: ClientRequest) -> HttpAnswer:
        content = request.body_as(_Reason).content
        room_id, sent = await memberships.knock(
            request.identity, request.path["room"], request.via, content
        )
        return positioned(json_answer({"room_id": room_id}), sent)

    async def leave(request: ClientRequest) -> HttpAnswer:
        content = request.body_as(_Reason).content
        changed = await memberships.leave(request.identity, request.path["room"], content)
        return positioned(json_answer({}), changed.sent)

    async def invite(request: ClientRequest) -> HttpAnswer:
        target = request.body_as(_Target)
        check_user_id(target.user_id)
        changed = await memberships.invite(
            request.identity, request.path["room"], target.user_id, target.content
        )
        return positioned(json_answer({}), changed.sent)

    async def put_member(request: ClientRequest) -> HttpAnswer:
        """A membership as a state event: it goes the way of the other endpoints, where there is one."""
        identity, content = request.identity, request.json()
        room_id, user_id = request.path["room"], request.path["user"]
        rest = {name: each for name, each in content.items() if name != "membership"}
        membership, sent = content.get("membership"), None
        if membership == "invite":
            check_user_id(user_id)
            _, sent = await memberships.invite(identity, room_id, user_id, rest)
        elif user_id == request.user_id and membership == "join":
            _, sent = await memberships.join(identity, room_id, (), rest)
        elif user_id == request.user_id and membership == "knock":
            _, sent = await memberships.knock(identity, room_id, (), rest)
        elif user_id == request.user_id and membership == "leave":
            _, sent = await memberships.leave(identity, room_id, rest)
        if sent is None:  # such as the new name of a user who is in the room
            sent = await rooms.sender.send(
                identity, room_id, "m.room.member", content, state_key=user_id
            )
        return sent_answer(sent)

    async def forget(request: ClientRequest) -> HttpAnswer:
        await changes.forget(request.identity, request.path["room"])
        return json_answer({})

    def sets(membership: str, of: Sequence[str] | None = None) -> ClientHandle:
        """An endpoint that sets the membership of another user."""

        async def handle(request: ClientRequest) -> HttpAnswer:
            target, room_id = request.body_as(_Target), request.path["room"]
            sent: SentEvent = await changes.set_membership(
                request.identity, room_id, target.user_id, membership, target.content, of
            )
            return positioned(json_answer({}), sent)

        return handle

    return [
        *endpoints.put(
            "/rooms/<room>/state/m.room.member/<user>", to_the_end(put_member), waits=True
        ),
        *asks_others("/createRoom", create),
        *asks_others("/join/<room>", join),
        *asks_others("/knock/<room>", knock),
        *asks_others("/rooms/<room>/join", join),
        *asks_others("/rooms/<room>/leave", leave),
        *endpoints.post("/rooms/<room>/forget", forget),
        *endpoints.post("/rooms/<room>/upgrade", upgrade),
        *asks_others("/rooms/<room>/invite", invite),
        *endpoints.post("/rooms/<room>/kick", sets("leave", ("join", "invite", "knock"))),
        *endpoints.post("/rooms/<room>/ban", sets("ban")),
        *endpoints.post("/rooms/<room>/unban", sets("leave", ("ban",))),
    ]


def directory_routes(
    endpoints: Endpoints, rooms: RoomSending, memberships: ChangesMemberships
) -> list[Route]:
    """The endpoints of aliases; the list of public rooms is empty."""
    aliases, server_name = rooms.aliases, rooms.sender.server_name

    async def find(request: ClientRequest) -> HttpAnswer:
        alias = request.path["alias"]
        if not alias.startswith("#"):
            raise UnknownAlias(alias=alias[:255])
        room_id, servers = await memberships.find(alias)
        named = servers if server_name in servers else [server_name, *servers]
        own = alias.endswith(f":{server_name}")
        return json_answer({"room_id": room_id, "servers": named if own else servers})

    async def add(request: ClientRequest) -> HttpAnswer:
        room_id = request.body_as(_AliasTarget).room_id
        await aliases.add(request.identity, request.path["alias"], room_id)
        return json_answer({})

    async def remove(request: ClientRequest) -> HttpAnswer:
        await aliases.remove(request.identity, request.path["alias"])
        return json_answer({})

    async def listed(request: ClientRequest) -> HttpAnswer:
        found = await aliases.of_room(request.identity, request.path["room"])
        return json_answer({"aliases": found})

    async def visibility(request: ClientRequest) -> HttpAnswer:
        await rooms.sender.placements.of(request.path["room"])
        return json_answer({"visibility": "private"})

    async def public_rooms(request: ClientRequest) -> HttpAnswer:
        return json_answer({"chunk": [], "total_room_count_estimate": 0})

    return [
        *endpoints.get("/directory/room/<alias>", find),
        *endpoints.put("/directory/room/<alias>", add),
        *endpoints.delete("/directory/room/<alias>", remove),
        *endpoints.get("/rooms/<room>/aliases", listed),
        *endpoints.get("/directory/list/room/<room>", visibility),
        *endpoints.get("/publicRooms", public_rooms),
        *endpoints.post_query("/publicRooms", public_rooms),
    ]
