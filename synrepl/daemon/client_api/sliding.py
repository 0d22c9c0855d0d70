"""The endpoints of simplified sliding sync.

Source: MSC4186. Below its unstable prefix requests and answers have the older form.
"""

from __future__ import annotations

from synrepl.adapters.http.messages import HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.daemon.client_api.endpoints import ClientHandle, ClientRequest, Endpoints
from synrepl.daemon.client_api.sliding_answers import (
    EncodesRoom,
    encoded_answer,
    newer_room,
    older_room,
)
from synrepl.daemon.client_api.sliding_bodies import sliding_body, sliding_request
from synrepl.services.rooms.sliding.sliding_sync import SlidingSync

#: Announced among the unstable features of ``/versions``.
SLIDING_FEATURE = "org.matrix.simplified_msc3575"

_OLDER = (f"/_matrix/client/unstable/{SLIDING_FEATURE}",)
_NEWER = ("/_matrix/client/v4",)


def sliding_routes(endpoints: Endpoints, sliding: SlidingSync) -> list[Route]:
    """The endpoints, whose requests wait for news."""

    def answers(encode_room: EncodesRoom, *, is_older: bool) -> ClientHandle:
        async def handle(request: ClientRequest) -> HttpAnswer:
            body = sliding_body(request, is_older=is_older)
            wanted = sliding_request(body, request.user_id)
            found = await sliding.sync(request.identity, wanted)
            answer = encoded_answer(found, wanted.extensions, encode_room)
            if is_older and body.txn_id is not None:
                answer["txn_id"] = body.txn_id
            return json_answer(answer)

        return handle

    older, newer = answers(older_room, is_older=True), answers(newer_room, is_older=False)
    return [
        *endpoints.post_query("/sync", older, _OLDER, waits=True),
        *endpoints.post_query("/sync", newer, _NEWER, waits=True),
    ]
