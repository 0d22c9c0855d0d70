"""Endpoints about this server's aliases and users. What it does not have gets the specification's empty answer, or refusal.

Source: https://spec.matrix.org/v1.16/server-server-api/#querying-for-information
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from synrepl.adapters.federation.signed_endpoints import (
    FederationEndpoints,
    SignedHandle,
    SignedRequest,
)
from synrepl.adapters.http.messages import HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core.errors import InputError
from synrepl.rooms import BadIdentifier, server_of

_V1 = "/_matrix/federation/v1"

#: Servers in a room that are named with an alias.
MAX_NAMED_SERVERS = 100

#: The room of an alias, and servers in it.
FindAlias = Callable[[str], Awaitable[tuple[str, Sequence[str]]]]


class UserNotHere(InputError):
    """{user_id} is not a user of this server"""


class SpaceNotHere(InputError):
    """there is no space {room_id} here that you may see"""


class DirectoryEndpoints:
    """Answers what other servers ask about aliases and users.

    :param find_alias: raises ``UnknownAlias``
    """

    def __init__(self, find_alias: FindAlias, server_name: str) -> None:
        self._find_alias = find_alias
        self._server_name = server_name

    def routes(self, endpoints: FederationEndpoints) -> list[Route]:
        """The routes."""
        no_rooms = _empty({"chunk": [], "total_room_count_estimate": 0})
        return [
            endpoints.get(f"{_V1}/query/directory", self.alias),
            endpoints.get(f"{_V1}/query/profile", self.profile),
            endpoints.get(f"{_V1}/user/devices/<user>", self.devices),
            endpoints.post(f"{_V1}/user/keys/query", _empty({"device_keys": {}})),
            endpoints.post(f"{_V1}/user/keys/claim", _empty({"one_time_keys": {}})),
            endpoints.get(f"{_V1}/publicRooms", no_rooms),
            endpoints.post(f"{_V1}/publicRooms", no_rooms),
            endpoints.get(f"{_V1}/hierarchy/<room>", self.hierarchy),
        ]

    async def alias(self, request: SignedRequest) -> HttpAnswer:
        """The room that an alias stands for."""
        room_id, servers = await self._find_alias(request.query.get("room_alias", ""))
        others = [each for each in servers if each != self._server_name]
        named = [self._server_name, *others[: MAX_NAMED_SERVERS - 1]]
        return json_answer({"room_id": room_id, "servers": named})

    async def profile(self, request: SignedRequest) -> HttpAnswer:
        """A profile, which is empty: names are those of memberships."""
        self._check_user(request.query.get("user_id", ""))
        return json_answer({})

    async def devices(self, request: SignedRequest) -> HttpAnswer:
        """The devices of a user that have keys: none."""
        user_id = request.path["user"]
        self._check_user(user_id)
        return json_answer({"user_id": user_id, "stream_id": 0, "devices": []})

    async def hierarchy(self, request: SignedRequest) -> HttpAnswer:
        """The rooms of a space, which this server does not tell."""
        raise SpaceNotHere(room_id=request.path["room"][:255])

    def _check_user(self, user_id: str) -> None:
        try:
            is_own = server_of(user_id) == self._server_name
        except BadIdentifier:
            is_own = False
        if not is_own:
            raise UserNotHere(user_id=user_id[:255])


def _empty(answer: Mapping[str, Any]) -> SignedHandle:
    async def handle(request: SignedRequest) -> HttpAnswer:
        return json_answer(answer)

    return handle
