"""Endpoints that say what the server can do and who the client is: versions, login, logout, whoami, capabilities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from synrepl.adapters.client_api.bodies import json_object
from synrepl.adapters.client_api.errors import BadClientBody
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.daemon.client_api.endpoints import ClientRequest, Endpoints
from synrepl.daemon.client_api.sliding import SLIDING_FEATURE
from synrepl.rooms import ROOM_VERSIONS
from synrepl.services.clients.identity import ClientChecker, ClientIdentity, UnsupportedLogin

#: Versions of the specification whose endpoints are there.
SPECIFICATION_VERSIONS = (
    "r0.0.1",
    "r0.1.0",
    "r0.2.0",
    "r0.3.0",
    "r0.4.0",
    "r0.5.0",
    "r0.6.0",
    "r0.6.1",
    *(f"v1.{minor}" for minor in range(1, 13)),
)


def session_routes(
    endpoints: Endpoints,
    checker: ClientChecker,
    default_room_version: str,
    forget_device: Callable[[ClientIdentity], Awaitable[object]],
) -> list[Route]:
    """The endpoints of a client's session.

    :param forget_device: is called with a device that has logged out

    Source: https://spec.matrix.org/v1.16/client-server-api/#client-authentication
    """
    capabilities = {
        "m.room_versions": {
            "default": default_room_version,
            "available": dict.fromkeys(ROOM_VERSIONS, "stable"),
        },
        "m.change_password": {"enabled": False},
        "m.set_displayname": {"enabled": False},
        "m.set_avatar_url": {"enabled": False},
        "m.3pid_changes": {"enabled": False},
        "m.get_login_token": {"enabled": False},
    }

    async def versions(request: HttpRequest) -> HttpAnswer:
        features = {SLIDING_FEATURE: True}
        return json_answer({"versions": SPECIFICATION_VERSIONS, "unstable_features": features})

    async def flows(request: HttpRequest) -> HttpAnswer:
        return json_answer({"flows": [{"type": each} for each in checker.flows()]})

    async def log_in(request: HttpRequest) -> HttpAnswer:
        credentials = json_object(request.body)
        kind = credentials.get("type")
        if not isinstance(kind, str):
            raise BadClientBody(place=" at type", reason="the type of login is needed")
        if kind not in checker.flows():
            raise UnsupportedLogin(kind=kind[:100], flows=", ".join(checker.flows()))
        (user_id, device_id), access_token = await checker.login(credentials)
        return json_answer(
            {
                "user_id": user_id,
                "device_id": device_id,
                "access_token": access_token,
                "home_server": user_id.partition(":")[2],
            }
        )

    async def log_out(request: ClientRequest) -> HttpAnswer:
        await checker.logout(request.identity, request.access_token)
        await forget_device(request.identity)
        return json_answer({})

    async def who_am_i(request: ClientRequest) -> HttpAnswer:
        user_id, device_id = request.identity
        return json_answer({"user_id": user_id, "device_id": device_id, "is_guest": False})

    async def show_capabilities(request: ClientRequest) -> HttpAnswer:
        return json_answer({"capabilities": capabilities})

    return [
        Route("GET", "/_matrix/client/versions", versions, public=True, immediate=True),
        *endpoints.public("GET", "/login", flows),
        *endpoints.public("POST", "/login", log_in),
        *endpoints.post("/logout", log_out),
        *endpoints.post("/logout/all", log_out),
        *endpoints.get("/account/whoami", who_am_i),
        *endpoints.get("/capabilities", show_capabilities),
    ]
