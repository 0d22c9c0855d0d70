"""Endpoints of what this server does not have: keys, media, push, profiles of its own.

Clients ask for these without being asked to. Each gets the empty answer of the specification, or its refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Handle, Route
from synrepl.core.errors import InputError, Refused
from synrepl.daemon.client_api.endpoints import (
    CLIENT,
    ClientHandle,
    ClientRequest,
    Endpoints,
)
from synrepl.rooms import check_user_id

_MEDIA = ("/_matrix/media/v3", "/_matrix/media/r0", "/_matrix/client/v1/media")

#: The push rules of every user.
NO_PUSH_RULES: Mapping[str, Any] = {
    kind: [] for kind in ("override", "content", "room", "sender", "underride")
}


class NotHere(Refused):
    """this server does not have {what}"""


class NothingFound(InputError):
    """there is no {what}"""


def _empty(answer: Mapping[str, Any]) -> ClientHandle:
    async def handle(request: ClientRequest) -> HttpAnswer:
        return json_answer(answer)

    return handle


def _refused(what: str) -> ClientHandle:
    async def handle(request: ClientRequest) -> HttpAnswer:
        raise NotHere(what=what)

    return handle


def _missing(what: str) -> ClientHandle:
    async def handle(request: ClientRequest) -> HttpAnswer:
        raise NothingFound(what=what)

    return handle


def _refused_to_all(what: str) -> Handle:
    async def handle(request: HttpRequest) -> HttpAnswer:
        raise NotHere(what=what)

    return handle


def absent_routes(endpoints: Endpoints) -> list[Route]:
    """The endpoints of what is absent."""
    get, post, put = endpoints.get, endpoints.post, endpoints.put
    return [
        *post("/keys/upload", _empty({"one_time_key_counts": {}})),
        *post("/keys/query", _empty({"device_keys": {}, "failures": {}})),
        *post("/keys/claim", _empty({"one_time_keys": {}, "failures": {}})),
        *get("/keys/changes", _empty({"changed": [], "left": []})),
        *post("/keys/signatures/upload", _empty({"failures": {}})),
        *get("/room_keys/version", _missing("backup of keys")),
        *get("/pushrules", _empty({"global": NO_PUSH_RULES})),
        *get("/pushrules/", _empty({"global": NO_PUSH_RULES})),
        *get("/pushrules/global/", _empty(NO_PUSH_RULES)),
        *get("/pushers", _empty({"pushers": []})),
        *post("/pushers/set", _refused("push notifications")),
        *get("/notifications", _empty({"notifications": []})),
        *get("/voip/turnServer", _empty({})),
        *get("/thirdparty/protocols", _empty({})),
        *get("/account/3pid", _empty({"threepids": []})),
        *post("/user_directory/search", _empty({"results": [], "limited": False})),
        *endpoints.public("POST", "/register", _refused_to_all("registration")),
        *endpoints.public("GET", "/register/available", _refused_to_all("registration")),
        *put("/profile/<user>/displayname", _refused("profiles that can be set")),
        *put("/profile/<user>/avatar_url", _refused("profiles that can be set")),
        *_devices(endpoints),
        *_media(endpoints),
        *_profiles(endpoints),
    ]


def _devices(endpoints: Endpoints) -> list[Route]:
    async def devices(request: ClientRequest) -> HttpAnswer:
        return json_answer({"devices": [{"device_id": request.identity.device_id}]})

    async def device(request: ClientRequest) -> HttpAnswer:
        if request.path["device"] != request.identity.device_id:
            raise NothingFound(what="such device")
        return json_answer({"device_id": request.identity.device_id})

    return [
        *endpoints.get("/devices", devices),
        *endpoints.get("/devices/<device>", device),
        *endpoints.put("/devices/<device>", _refused("names of devices")),
        *endpoints.delete("/devices/<device>", _refused("devices that can be deleted")),
    ]


def _media(endpoints: Endpoints) -> list[Route]:
    get, post = endpoints.get, endpoints.post
    config = _empty({"m.upload.size": 0})
    routes = [*post("/upload", _refused("media"), _MEDIA[:2])]
    for prefix in _MEDIA:
        routes += get("/config", config, (prefix,))
        for path in ("/download/<server>/<media>", "/thumbnail/<server>/<media>"):
            routes += get(path, _missing("media"), (prefix,))
        routes += get("/download/<server>/<media>/<name>", _missing("media"), (prefix,))
        routes += get("/preview_url", _missing("preview"), (prefix,))
    return routes


def _profiles(endpoints: Endpoints) -> list[Route]:
    """Profiles, which are empty: names are those of memberships."""

    async def profile(request: ClientRequest) -> HttpAnswer:
        check_user_id(request.path["user"])
        return json_answer({})

    paths = ("/profile/<user>", "/profile/<user>/displayname", "/profile/<user>/avatar_url")
    return [each for path in paths for each in endpoints.get(path, profile, CLIENT)]
