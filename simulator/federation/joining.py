"""How a simulated server joins rooms of others: with their whole state."""

from __future__ import annotations

from urllib.parse import quote

import orjson

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.room_host import RoomHost
from synrepl.rooms import Event, RoomVersion, event_of, parse_event, room_version, sign_event

_PREFIX = "/_matrix/federation"


async def join_room(server: RoomHost, room_id: str, user_id: str, via: str) -> HostedRoom:
    """Join a room by a server that is in it.

    :raises SynreplError: it does not let the user in
    """
    ask, room_path = server.outgoing.ask, quote(room_id, safe="")
    path = f"{_PREFIX}/v1/make_join/{room_path}/{quote(user_id, safe='')}"
    versions = [("ver", str(number)) for number in range(1, 13)]
    template = await ask("GET", via, path, versions)
    version = room_version(template["room_version"])
    join = completed(server, version, template["event"])
    path = f"{_PREFIX}/v2/send_join/{room_path}/{quote(join.event_id, safe='')}"
    answer = await ask("PUT", via, path, content=join.raw)
    if "event" in answer:
        join = parse_event(orjson.dumps(answer["event"]), version)
    room = server.rooms.get(room_id) or HostedRoom(version)
    state = list(server.outgoing.checked(answer["state"], version))
    room.add_outliers([*server.outgoing.checked(answer["auth_chain"], version), *state])
    room.add_with_state(join, state)
    server.rooms[room_id] = room
    return room


def completed(server: RoomHost, version: RoomVersion, template: dict[str, object]) -> Event:
    """An event of a template, signed."""
    fields = template | {"origin_server_ts": server.now_ms()}
    if version.name in ("1", "2"):
        fields["event_id"] = f"$join-{server.now_ms()}:{server.name}"
    key = server.federation.keys.signing_key(server.name)
    return event_of(sign_event(fields, version, server.name, key), version)
