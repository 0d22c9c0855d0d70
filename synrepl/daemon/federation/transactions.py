"""The endpoint for transactions of other servers.

Source: https://spec.matrix.org/v1.16/server-server-api/#transactions
"""

from __future__ import annotations

from synrepl.adapters.federation.signed_endpoints import FederationEndpoints, SignedRequest
from synrepl.adapters.http.messages import HttpAnswer
from synrepl.adapters.http.routes import Route
from synrepl.services.federation.inbound.transactions import TransactionReceiver


def transaction_routes(
    endpoints: FederationEndpoints, receiver: TransactionReceiver
) -> list[Route]:
    """The endpoint; a transaction may wait for others of its server."""

    async def send(request: SignedRequest) -> HttpAnswer:
        answer = await receiver.receive(request.origin, request.path["txn"], request.body)
        return HttpAnswer(200, answer)

    return [endpoints.put("/_matrix/federation/v1/send/<txn>", send, waits=True)]
