"""Endpoints of account data, tags, receipts, typing, presence and messages to devices.

Source: https://spec.matrix.org/v1.16/client-server-api/, the modules of these names.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from synrepl.adapters.client_api.errors import BadClientBody
from synrepl.adapters.client_api.write_positions import with_positions
from synrepl.adapters.http.messages import JSON, HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core.clock import Clock
from synrepl.daemon.assemble.client_data import ClientDataServices
from synrepl.daemon.client_api.absent import NO_PUSH_RULES
from synrepl.daemon.client_api.endpoints import BadParameter, ClientRequest, Endpoints
from synrepl.daemon.client_api.sending import checked_txn_id
from synrepl.positions.vector import PositionVector
from synrepl.rooms import check_user_id
from synrepl.services.rooms.client_data.account_data import PUSH_RULES, READ_MARKER
from synrepl.services.rooms.client_data.data_json import presence_json
from synrepl.services.rooms.client_data.presence_tracker import PresenceTracker
from synrepl.services.rooms.client_data.receipts import PUBLIC_RECEIPT
from synrepl.services.rooms.client_data.stream_writers import WrittenFact
from synrepl.services.rooms.client_data.typing import DEFAULT_TYPING_S
from synrepl.storage.clients.values import PRIVATE_RECEIPT


class _Receipt(msgspec.Struct):
    """The body of a receipt."""

    thread_id: str | None = None


class _ReadMarkers(msgspec.Struct):
    """The body of read markers."""

    fully_read: str | None = msgspec.field(default=None, name=READ_MARKER)
    read: str | None = msgspec.field(default=None, name=PUBLIC_RECEIPT)
    private: str | None = msgspec.field(default=None, name=PRIVATE_RECEIPT)


class _Typing(msgspec.Struct):
    """The body of a typing notification; the timeout is in milliseconds."""

    typing: bool
    timeout: int | None = None


class _PresenceBody(msgspec.Struct):
    """The body of a change of presence."""

    presence: str
    status_msg: str | None = None


class _DeviceMessages(msgspec.Struct):
    """The body of messages to devices: by user, and by device."""

    messages: dict[str, dict[str, dict[str, Any]]]


class ClientDataEndpoints:
    """Answers the endpoints.

    :param presence: is told that users do something
    """

    def __init__(
        self, clock: Clock, services: ClientDataServices, presence: PresenceTracker
    ) -> None:
        self._clock = clock
        self._services = services
        self._presence = presence

    # -- account data and tags ----------------------------------------------------------------

    async def get_account_data(self, request: ClientRequest) -> HttpAnswer:
        """The content of account data, of a room or of none."""
        request.check_own_user()
        kind, room_id = request.path["type"], request.path.get("room")
        if kind == PUSH_RULES and room_id is None:
            return json_answer({"global": NO_PUSH_RULES})
        content = await self._services.account_data.get(request.user_id, room_id, kind)
        return HttpAnswer(200, content, JSON)

    async def set_account_data(self, request: ClientRequest) -> HttpAnswer:
        """Set account data."""
        request.check_own_user()
        kind, room_id = request.path["type"], request.path.get("room")
        content = request.json()
        return _told(await self._services.account_data.set(request.user_id, room_id, kind, content))

    async def get_tags(self, request: ClientRequest) -> HttpAnswer:
        """The tags on a room."""
        request.check_own_user()
        tags = await self._services.account_data.tags(request.user_id, request.path["room"])
        return json_answer({"tags": tags})

    async def set_tag(self, request: ClientRequest) -> HttpAnswer:
        """Put a tag on a room."""
        request.check_own_user()
        room_id, tag = request.path["room"], request.path["tag"]
        content = request.json()
        order = content.get("order", 0)
        if isinstance(order, bool) or not isinstance(order, int | float):
            raise BadClientBody(place=" at order", reason="it is not a number")
        return _told(
            await self._services.account_data.set_tag(request.user_id, room_id, tag, content)
        )

    async def remove_tag(self, request: ClientRequest) -> HttpAnswer:
        """Remove a tag from a room."""
        request.check_own_user()
        room_id, tag = request.path["room"], request.path["tag"]
        return _told(await self._services.account_data.set_tag(request.user_id, room_id, tag, None))

    # -- receipts -----------------------------------------------------------------------------

    async def send_receipt(self, request: ClientRequest) -> HttpAnswer:
        """Take a receipt, or set the read marker."""
        room_id, kind, event_id = (request.path[name] for name in ("room", "type", "event"))
        thread_id = request.body_as(_Receipt).thread_id
        self._presence.acts(request.user_id)
        if kind == READ_MARKER:
            if thread_id is not None:
                raise BadParameter(name="thread_id", reason=f"{READ_MARKER} belongs to no thread")
            return _told(await self._mark(request, event_id))
        return _told(
            await self._services.receipts.send(request.user_id, room_id, kind, event_id, thread_id)
        )

    async def set_read_markers(self, request: ClientRequest) -> HttpAnswer:
        """Take receipts, and set the read marker."""
        markers, room_id = request.body_as(_ReadMarkers), request.path["room"]
        self._presence.acts(request.user_id)
        facts = []
        for kind, event_id in (
            (PUBLIC_RECEIPT, markers.read),
            (PRIVATE_RECEIPT, markers.private),
        ):
            if event_id is not None:
                facts.append(
                    await self._services.receipts.send(request.user_id, room_id, kind, event_id)
                )
        if markers.fully_read is not None:
            facts.append(await self._mark(request, markers.fully_read))
        return _told(*facts)

    async def _mark(self, request: ClientRequest, event_id: str) -> WrittenFact | None:
        account_data, room_id = self._services.account_data, request.path["room"]
        return await account_data.set_read_marker(request.user_id, room_id, event_id)

    # -- typing and presence ------------------------------------------------------------------

    async def set_typing(self, request: ClientRequest) -> HttpAnswer:
        """Note that the user types, or does not."""
        request.check_own_user()
        body = request.body_as(_Typing)
        timeout_s = DEFAULT_TYPING_S if body.timeout is None else body.timeout / 1000
        if body.typing and timeout_s <= 0:
            raise BadParameter(name="timeout", reason="give milliseconds above 0")
        self._presence.acts(request.user_id)
        await self._services.typing.set(
            request.user_id, request.path["room"], body.typing, timeout_s
        )
        return json_answer({})

    async def get_presence(self, request: ClientRequest) -> HttpAnswer:
        """The presence of a user."""
        user_id = request.path["user"]
        check_user_id(user_id)
        found = await self._services.presence.get(user_id, request.user_id)
        return json_answer(presence_json(found, self._clock.seconds()))

    async def set_presence(self, request: ClientRequest) -> HttpAnswer:
        """Set the presence of the user."""
        request.check_own_user()
        status = request.body_as(_PresenceBody)
        return _told(
            await self._services.presence.set(request.user_id, status.presence, status.status_msg)
        )

    # -- messages to devices ------------------------------------------------------------------

    async def send_to_devices(self, request: ClientRequest) -> HttpAnswer:
        """Send messages to devices."""
        kind, messages = request.path["type"], request.body_as(_DeviceMessages).messages
        identified_by = "\0".join([*request.identity, kind, checked_txn_id(request)])
        return _told(
            await self._services.to_device.send(request.user_id, kind, messages, identified_by)
        )


def client_data_routes(endpoints: Endpoints, data: ClientDataEndpoints) -> list[Route]:
    """The endpoints."""
    get, put, post = endpoints.get, endpoints.put, endpoints.post
    own, room = "/user/<user>/account_data/<type>", "/user/<user>/rooms/<room>"
    return [
        *get(own, data.get_account_data),
        *put(own, data.set_account_data),
        *get(f"{room}/account_data/<type>", data.get_account_data),
        *put(f"{room}/account_data/<type>", data.set_account_data),
        *get(f"{room}/tags", data.get_tags),
        *put(f"{room}/tags/<tag>", data.set_tag),
        *endpoints.delete(f"{room}/tags/<tag>", data.remove_tag),
        *post("/rooms/<room>/receipt/<type>/<event>", data.send_receipt),
        *post("/rooms/<room>/read_markers", data.set_read_markers),
        *put("/rooms/<room>/typing/<user>", data.set_typing),
        *get("/presence/<user>/status", data.get_presence),
        *put("/presence/<user>/status", data.set_presence),
        *put("/sendToDevice/<type>/<txn>", data.send_to_devices),
    ]


def _told(*facts: WrittenFact | None) -> HttpAnswer:
    """An empty answer, with the positions of what was written."""
    positions: dict[str, PositionVector] = defaultdict(PositionVector)
    for fact in facts:
        if fact is not None:
            positions[fact.stream] = positions[fact.stream].advance(fact.writer, fact.token)
    answer = json_answer({})
    return with_positions(answer, positions) if positions else answer
