"""How a simulated process of our server answers others: by the routes of its listener, without HTTP and signatures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, quote

import orjson
from twisted.web.http_headers import Headers

from simulator.clock import Process
from synrepl.adapters.client_api.errors import TRANSPORT_ERRORS, matrix_error_answer
from synrepl.adapters.federation.signed_endpoints import (
    FederationEndpoints,
    SignedHandle,
    SignedRequest,
)
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, StreamedAnswer
from synrepl.adapters.http.routes import Handle, Router
from synrepl.core.errors import SynreplError
from synrepl.daemon.federation.errors import FEDERATION_ERRORS
from synrepl.daemon.federation.memberships import ServedMemberships
from synrepl.daemon.federation.rooms import RoomEndpoints
from synrepl.daemon.federation.transactions import transaction_routes
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest
from synrepl.services.federation.inbound.transactions import TransactionReceiver
from synrepl.services.federation.resident.arrivals import MembershipArrivals
from synrepl.services.federation.resident.reading import ResidentReading
from synrepl.services.federation.resident.state_streams import StateStreams
from synrepl.services.federation.resident.templates import MembershipTemplates

_ERRORS = {**TRANSPORT_ERRORS, **FEDERATION_ERRORS}


class BelievedEndpoints(FederationEndpoints):
    """Makes routes that believe who a request is from: the address of its connection is the name of a server.

    :param heard_of: is called with the name of each server that has sent a request
    """

    def __init__(self, process: Process, heard_of: Callable[[str], Awaitable[None]]) -> None:
        self._process = process
        self._hear = heard_of

    def _signed(self, handle: SignedHandle) -> Handle:
        async def believed(request: HttpRequest) -> HttpAnswer:
            origin = request.remote_address

            async def hear() -> None:
                await self._hear(origin)

            self._process.spawn("a server is up", hear())
            content = orjson.loads(request.body) if request.body else None
            signed = SignedRequest(
                origin, request.path, request.query, request.uri, request.body, content
            )
            return await handle(signed)

        return believed


class OwnEndpoints:
    """Answers requests of other servers in one process."""

    def __init__(
        self,
        process: Process,
        templates: MembershipTemplates,
        arrivals: MembershipArrivals,
        reading: ResidentReading,
        streams: StateStreams,
        receiver: TransactionReceiver,
        server_name: str,
        heard_of: Callable[[str], Awaitable[None]],
    ) -> None:
        endpoints = BelievedEndpoints(process, heard_of)
        # Nobody is invited by another server.
        memberships = ServedMemberships(
            templates,
            arrivals,
            None,  # type: ignore[arg-type]
            streams,
            server_name,
        )
        self._router = Router(
            [
                *memberships.routes(endpoints),
                *RoomEndpoints(process, reading, server_name).routes(endpoints),
                *transaction_routes(endpoints, receiver),
            ]
        )

    async def answer(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        """Answer a request; None if the answer breaks off."""
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in request.query)
        uri = f"{request.path}?{query}" if query else request.path
        first = dict(reversed(parse_qsl(query, keep_blank_values=True)))
        try:
            match = self._router.find(request.method, request.path.encode())
            asked = HttpRequest(
                match.path, first, Headers(), request.content or b"", origin, request.method, uri
            )
            found = await match.route.handle(asked)
        except SynreplError as error:
            found = matrix_error_answer(error, _ERRORS)
        body = found.body
        if isinstance(found, StreamedAnswer):
            try:
                body += b"".join([each async for each in found.chunks])
            except SynreplError:
                return None
        return FederationAnswer(found.status, BytesBody(body))
