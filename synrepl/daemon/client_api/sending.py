"""Endpoints that send events: messages, state and redactions.

Source: https://spec.matrix.org/v1.16/client-server-api/#sending-events-to-a-room
"""

from __future__ import annotations

from collections.abc import Callable

from synrepl.adapters.client_api.write_positions import with_positions
from synrepl.adapters.http.messages import HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.daemon.client_api.endpoints import BadParameter, ClientRequest, Endpoints
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.sending.event_sender import ClientRequestId, EventSender
from synrepl.storage.rooms.tables.sent_events import SentEvent
from synrepl.streams.synapse.events import EVENTS

#: Maximum length of a transaction ID.
MAX_TXN_ID = 255


def sending_routes(
    endpoints: Endpoints, sender: EventSender, acts: Callable[[str], object]
) -> list[Route]:
    """The endpoints that send events.

    :param acts: is told who does something
    """

    async def send(request: ClientRequest) -> HttpAnswer:
        acts(request.user_id)
        room_id, kind = request.path["room"], request.path["type"]
        sent = await sender.send(
            request.identity,
            room_id,
            kind,
            request.json(),
            request_id=_request_id(request, f"send {room_id} {kind}"),
        )
        return sent_answer(sent)

    async def put_state(request: ClientRequest) -> HttpAnswer:
        acts(request.user_id)
        sent = await sender.send(
            request.identity,
            request.path["room"],
            request.path["type"],
            request.json(),
            state_key=request.path.get("key", ""),
        )
        return sent_answer(sent)

    async def redact(request: ClientRequest) -> HttpAnswer:
        acts(request.user_id)
        room_id, event_id = request.path["room"], request.path["event"]
        reason = request.json().get("reason")
        sent = await sender.send(
            request.identity,
            room_id,
            "m.room.redaction",
            {"reason": reason} if isinstance(reason, str) else {},
            redacts=event_id,
            request_id=_request_id(request, f"redact {room_id} {event_id}"),
        )
        return sent_answer(sent)

    return [
        *endpoints.put("/rooms/<room>/send/<type>/<txn>", send),
        *endpoints.put("/rooms/<room>/state/<type>", put_state),
        *endpoints.put("/rooms/<room>/state/<type>/<key>", put_state),
        *endpoints.put("/rooms/<room>/redact/<event>/<txn>", redact),
    ]


def sent_answer(sent: SentEvent) -> HttpAnswer:
    """The answer for an event that was sent, with its position."""
    return positioned(json_answer({"event_id": sent.event_id}), sent)


def positioned(answer: HttpAnswer, sent: SentEvent | None) -> HttpAnswer:
    """An answer with the position of an event, if there is one."""
    if sent is None or sent.stream_id is None or sent.writer is None:
        return answer
    return with_positions(answer, {EVENTS.name: PositionVector({sent.writer: sent.stream_id})})


def _request_id(request: ClientRequest, endpoint: str) -> ClientRequestId:
    return ClientRequestId(endpoint, checked_txn_id(request))


def checked_txn_id(request: ClientRequest) -> str:
    """The transaction ID in the path.

    :raises BadParameter: it is too long, or has a NUL
    """
    txn_id = request.path["txn"]
    if not txn_id or len(txn_id) > MAX_TXN_ID or "\0" in txn_id:
        reason = f"give 1 to {MAX_TXN_ID} characters without NUL"
        raise BadParameter(name="txnId", reason=reason)
    return txn_id
