"""Endpoints by which users of other servers join, knock and leave, and users of this one are invited.

Source: https://spec.matrix.org/v1.16/server-server-api/#joining-rooms
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from synrepl.adapters.federation.errors import BadFederationBody
from synrepl.adapters.federation.signed_endpoints import (
    FederationEndpoints,
    SignedHandle,
    SignedRequest,
)
from synrepl.adapters.http.messages import HttpAnswer, StreamedAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core import jsons
from synrepl.rooms import NoCanonicalJson, canonical_json
from synrepl.services.federation.resident.arrivals import MembershipArrivals
from synrepl.services.federation.resident.invites import InviteReceiver, ReceivedInvite
from synrepl.services.federation.resident.state_streams import StateStreams
from synrepl.services.federation.resident.templates import MembershipTemplates, RemoteMembership

_V1, _V2 = "/_matrix/federation/v1", "/_matrix/federation/v2"


class ServedMemberships:
    """Answers the handshakes of memberships."""

    def __init__(
        self,
        templates: MembershipTemplates,
        arrivals: MembershipArrivals,
        invites: InviteReceiver,
        streams: StateStreams,
        server_name: str,
    ) -> None:
        self._templates = templates
        self._arrivals = arrivals
        self._invites = invites
        self._streams = streams
        self._server_name = server_name

    def routes(self, endpoints: FederationEndpoints) -> list[Route]:
        """The routes."""
        user, event = "<room>/<user>", "<room>/<event>"
        return [
            endpoints.get(f"{_V1}/make_join/{user}", self._make("join"), repeatable=["ver"]),
            endpoints.get(f"{_V1}/make_knock/{user}", self._make("knock"), repeatable=["ver"]),
            endpoints.get(f"{_V1}/make_leave/{user}", self._make("leave"), repeatable=["ver"]),
            endpoints.put(f"{_V1}/send_join/{event}", self.send_join_v1),
            endpoints.put(f"{_V2}/send_join/{event}", self.send_join),
            endpoints.put(f"{_V1}/send_knock/{event}", self.send_knock),
            endpoints.put(f"{_V1}/send_leave/{event}", self.send_leave_v1),
            endpoints.put(f"{_V2}/send_leave/{event}", self.send_leave),
            endpoints.put(f"{_V1}/invite/{event}", self.invite_v1),
            endpoints.put(f"{_V2}/invite/{event}", self.invite),
        ]

    def _make(self, membership: RemoteMembership) -> SignedHandle:
        async def make(request: SignedRequest) -> HttpAnswer:
            form = await self._templates.make(
                request.origin,
                membership,
                request.path["room"],
                request.path["user"],
                request.values("ver"),
            )
            return HttpAnswer(200, canonical_json(form._asdict()))

        return make

    async def send_join(self, request: SignedRequest) -> HttpAnswer:
        """Join a room; the state is sent as it is read."""
        return StreamedAnswer(200, b"", chunks=await self._joined(request))

    async def send_join_v1(self, request: SignedRequest) -> HttpAnswer:
        """The same with a status before the answer."""
        parts = await self._joined(request)

        async def chunks() -> AsyncIterator[bytes]:
            yield b"[200,"
            async for part in parts:
                yield part
            yield b"]"

        return StreamedAnswer(200, b"", chunks=chunks())

    async def _joined(self, request: SignedRequest) -> AsyncIterator[bytes]:
        omits = request.query.get("omit_members") == "true"
        arrival = await self._arrivals.take(
            request.origin, "join", request.path["room"], request.path["event"], request.body
        )
        name, is_omitted = jsons.encode(self._server_name), jsons.encode(omits)
        head = b'"origin":%b,"members_omitted":%b,"event":%b' % (
            name,
            is_omitted,
            arrival.event.raw,
        )
        return await self._streams.joined(
            arrival.event, arrival.servers, omit_members=omits, head=head
        )

    async def send_knock(self, request: SignedRequest) -> HttpAnswer:
        """Knock."""
        room_id = request.path["room"]
        await self._arrivals.take(
            request.origin, "knock", room_id, request.path["event"], request.body
        )
        shown = await self._arrivals.stripped_state(room_id)
        return HttpAnswer(200, b'{"knock_room_state":[%b]}' % b",".join(shown))

    async def send_leave(self, request: SignedRequest) -> HttpAnswer:
        """Leave a room, or reject an invite."""
        await self._arrivals.take(
            request.origin, "leave", request.path["room"], request.path["event"], request.body
        )
        return json_answer({})

    async def send_leave_v1(self, request: SignedRequest) -> HttpAnswer:
        """The same with a status before the answer."""
        await self.send_leave(request)
        return json_answer([200, {}])

    async def invite(self, request: SignedRequest) -> HttpAnswer:
        """Invite a user of this server."""
        content = request.json()
        event, version = content.get("event"), content.get("room_version")
        if not isinstance(event, dict) or not isinstance(version, str):
            reason = "it has no object 'event', or its 'room_version' is no text"
            raise BadFederationBody(reason=reason)
        return await self._invited(request, event, version, content.get("invite_room_state"))

    async def invite_v1(self, request: SignedRequest) -> HttpAnswer:
        """The same of a room of version 1, whose event stands alone."""
        event = request.json()
        unsigned = event.get("unsigned")
        shown = unsigned.get("invite_room_state") if isinstance(unsigned, dict) else None
        answer = await self._invited(request, event, "1", shown)
        return HttpAnswer(200, b"[200,%b]" % answer.body)

    async def _invited(
        self, request: SignedRequest, event: dict[str, Any], version: str, shown: object
    ) -> HttpAnswer:
        # What a server shows of a room would be stored, and sent to others, as a part of the event.
        fields = {name: each for name, each in event.items() if name != "unsigned"}
        try:
            raw = canonical_json(fields)
        except NoCanonicalJson as error:
            raise BadFederationBody(reason=error) from None
        received = ReceivedInvite(request.path["room"], request.path["event"], raw, version, shown)
        signed = await self._invites.take(request.origin, received)
        return HttpAnswer(200, b'{"event":%b}' % signed.raw)
