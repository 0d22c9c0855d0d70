"""The endpoint ``/sync``.

Source: https://spec.matrix.org/v1.16/client-server-api/#get_matrixclientv3sync
"""

from __future__ import annotations

from synrepl.adapters.http.messages import HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.daemon.client_api.endpoints import ClientRequest, Endpoints
from synrepl.services.rooms.client_data.presence import wanted_presence
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.sync.stored_filters import StoredFilters
from synrepl.services.rooms.sync.sync import LONGEST_WAIT_S, ClientSync, SyncRequest
from synrepl.services.rooms.timelines.client_filter import (
    NO_FILTER,
    ClientFilter,
    parse_filter_text,
)

#: Parameters for the state at the end of timelines (MSC4222), each with the name that this state has in answers.
_STATE_AFTER = {
    "use_state_after": "state_after",
    "org.matrix.msc4222.use_state_after": "org.matrix.msc4222.state_after",
}


def sync_routes(
    endpoints: Endpoints, sync: ClientSync, filters: StoredFilters, server: str
) -> list[Route]:
    """The endpoint, whose requests wait for news.

    :param server: name of this server
    """

    async def answer(request: ClientRequest) -> HttpAnswer:
        query = request.query
        since = query.get("since")
        timeout_ms = request.number("timeout", 0, 0, int(LONGEST_WAIT_S * 1000))
        asked = SyncRequest(
            SyncToken.parse(since, server) if since else None,
            timeout_ms / 1000,
            await _filter(request, filters),
            request.flag("full_state"),
            next((name for each, name in _STATE_AFTER.items() if request.flag(each)), None),
            wanted_presence(query.get("set_presence")),
        )
        return json_answer(await sync.sync(request.identity, asked))

    async def add_filter(request: ClientRequest) -> HttpAnswer:
        request.check_own_user()
        return json_answer({"filter_id": await filters.add(request.user_id, request.json())})

    async def get_filter(request: ClientRequest) -> HttpAnswer:
        request.check_own_user()
        return json_answer(await filters.get(request.user_id, request.path["filter"]))

    return [
        *endpoints.get("/sync", answer, waits=True),
        *endpoints.post("/user/<user>/filter", add_filter),
        *endpoints.get("/user/<user>/filter/<filter>", get_filter),
    ]


async def _filter(request: ClientRequest, filters: StoredFilters) -> ClientFilter:
    """The filter of the URL: JSON, or the ID of a stored one.

    :raises BadJson: :raises BadFilter: :raises UnknownFilter:
    """
    text = request.query.get("filter")
    if not text:
        return NO_FILTER
    if text.startswith("{"):
        return parse_filter_text(text.encode())
    return await filters.wanted(request.user_id, text)
