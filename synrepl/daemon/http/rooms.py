"""The HTTP routes of the room store: ``POST /rooms/events``, and its reads below ``GET /rooms``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from synrepl.adapters.http.messages import JSON, HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core.errors import InputError, SynreplError
from synrepl.daemon.assemble.partial_rooms import PartialRoomServices
from synrepl.daemon.assemble.rooms import RoomServices
from synrepl.rooms import StateKey, Viewer
from synrepl.services.rooms.answers import (
    auth_explanation_json,
    change_json,
    event_json,
    graph_json,
    refusal_explanation_json,
    room_json,
    state_explanation_json,
    state_json,
    visibility_explanation_json,
)
from synrepl.services.rooms.assignment import OtherRoomWriter
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.database import CommitUnknown
from synrepl.storage.rooms.reading.event_access import (
    EventIsOutlier,
    EventNotStored,
    EventRejected,
)
from synrepl.storage.rooms.tables.numbers import UnknownRoom


class BadRoomQuery(InputError):
    """the parameter {name!r} of this URL is not acceptable: {reason}"""


#: 421 Misdirected Request: the same request is right at another process.
_STATUSES: Mapping[type[SynreplError], int] = {
    UnknownRoom: 404,
    EventNotStored: 404,
    EventIsOutlier: 409,
    EventRejected: 409,
    OtherRoomWriter: 421,
    CommitUnknown: 503,  # sending events again is harmless
}

_Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


def rooms_status(
    rooms: RoomServices | None, partial_rooms: PartialRoomServices | None
) -> dict[str, Any] | None:
    """The room store in ``GET /status``; None without one."""
    if rooms is None:
        return None
    return {
        "posted": dict(rooms.intake.outcomes),
        "refused": dict(rooms.intake.refused_by_limits),
        "queued": dict(rooms.intake.queued),
        "partial": None if partial_rooms is None else partial_rooms.status(),
    }


def room_routes(rooms: RoomServices | None) -> list[Route]:
    """The routes of a process with a room store; none without one."""
    if rooms is None:
        return []
    reads = _Reads(rooms.store, rooms.writers)
    intake = rooms.intake

    async def post(request: HttpRequest) -> HttpAnswer:
        query = request.query
        done = await intake.persist(request.body, query.get("version"), query.get("received"))
        return json_answer(done.to_json())

    event, room = "/rooms/events/<event>", "/rooms/<room>"
    paths: dict[str, _Handler] = {
        "/rooms": reads.rooms,
        event: reads.event,
        f"{event}/json": reads.event_json,
        f"{event}/auth_chain": reads.auth_chain,
        f"{event}/explain/state": reads.explain_state,
        f"{event}/explain/auth": reads.explain_auth,
        f"{event}/explain/refusal": reads.explain_refusal,
        f"{event}/explain/visibility": reads.explain_visibility,
        room: reads.room,
        f"{room}/state": reads.state,
        f"{room}/diff": reads.difference,
        f"{room}/members": reads.members,
        f"{room}/graph": reads.graph,
    }
    return [
        Route("POST", "/rooms/events", post, takes_body=True, statuses=_STATUSES),
        *(Route("GET", path, handle, statuses=_STATUSES) for path, handle in paths.items()),
    ]


class _Reads:
    """Answers reads. Unknown parameters are refused, because a misspelt one would be silently without effect."""

    def __init__(self, store: RoomStore, writers: RoomWriters) -> None:
        self._store = store
        self._writers = writers

    async def rooms(self, request: HttpRequest) -> HttpAnswer:
        """A page of rooms with their figures."""
        query = _query(request, "after", "limit")
        found = await self._store.rooms(query.get("after"), _limit(query))
        assignment = (await self._writers.place([each.room_id for each in found])).assignment
        rooms = [{**each._asdict(), "writer": assignment.writer_of(each.room_id)} for each in found]
        return json_answer({"rooms": rooms})

    async def room(self, request: HttpRequest) -> HttpAnswer:
        """A room with its figures and its ends."""
        _query(request)
        room_id = request.path["room"]
        figures = await self._store.room(room_id)
        ends = await self._store.heads(room_id)
        assignment = (await self._writers.place([room_id])).assignment
        return json_answer({**room_json(figures, ends), "writer": assignment.writer_of(room_id)})

    async def event(self, request: HttpRequest) -> HttpAnswer:
        """An event with what is known about it."""
        query = _query(request, "as_it_came")
        copy = await self._store.event(request.path["event"], as_it_came=_flag(query, "as_it_came"))
        return json_answer(event_json(copy))

    async def event_json(self, request: HttpRequest) -> HttpAnswer:
        """An event byte for byte."""
        query = _query(request, "as_it_came")
        copy = await self._store.event(request.path["event"], as_it_came=_flag(query, "as_it_came"))
        return HttpAnswer(200, copy.json, JSON)

    async def auth_chain(self, request: HttpRequest) -> HttpAnswer:
        """The auth chain of an event."""
        _query(request)
        chain = await self._store.auth_chain([request.path["event"]])
        return json_answer({"event_id": request.path["event"], "auth_chain": chain})

    async def state(self, request: HttpRequest) -> HttpAnswer:
        """A state: the current one, or that after or before an event."""
        query = _query(request, "at", "before", "types", "type", "state_key", "events")
        room_id, at = request.path["room"], query.get("at")
        before, types, keys = _flag(query, "before"), _list(query, "types"), _keys(query)
        if at is None and before:
            raise BadRoomQuery(name="before", reason="it needs 'at'")
        parts: dict[str, Any] = {"keys": keys, "types": types}
        shown: list[dict[str, Any]]
        if _flag(query, "events"):
            events = (
                await self._store.current_state(room_id, **parts)
                if at is None
                else await self._store.state_at(at, before=before, room_id=room_id, **parts)
            )
            shown = [event_json(events[key]) for key in sorted(events)]
        else:
            ids = (
                await self._store.current_state_ids(room_id, **parts)
                if at is None
                else await self._store.state_ids_at(at, before=before, room_id=room_id, **parts)
            )
            shown = state_json(ids)
        return json_answer({"room_id": room_id, "at": at, "before": before, "state": shown})

    async def difference(self, request: HttpRequest) -> HttpAnswer:
        """What differs between the states at two events."""
        query = _query(request, "from", "to", "before")
        older, newer = _required(query, "from"), _required(query, "to")
        change = await self._store.state_difference(
            older, newer, before=_flag(query, "before"), room_id=request.path["room"]
        )
        return json_answer({"from": older, "to": newer, "changes": change_json(change)})

    async def members(self, request: HttpRequest) -> HttpAnswer:
        """A page of users in the current state."""
        query = _query(request, "membership", "after", "limit")
        found = await self._store.members(
            request.path["room"],
            membership=query.get("membership"),
            after=query.get("after"),
            limit=_limit(query),
        )
        return json_answer({"members": [each._asdict() for each in found]})

    async def graph(self, request: HttpRequest) -> HttpAnswer:
        """A part of the event graph."""
        query = _query(request, "until", "limit")
        found = await self._store.graph(request.path["room"], query.get("until"), _limit(query))
        return json_answer({"events": [graph_json(each) for each in found]})

    async def explain_state(self, request: HttpRequest) -> HttpAnswer:
        """Where an entry of the state at an event comes from."""
        query = _query(request, "type", "state_key", "before")
        key = _required(query, "type"), query.get("state_key", "")
        found = await self._store.explain_state(
            request.path["event"], key, before=_flag(query, "before")
        )
        return json_answer(state_explanation_json(found))

    async def explain_auth(self, request: HttpRequest) -> HttpAnswer:
        """What authorises an event."""
        _query(request)
        return json_answer(
            auth_explanation_json(await self._store.explain_auth(request.path["event"]))
        )

    async def explain_refusal(self, request: HttpRequest) -> HttpAnswer:
        """Why an event was rejected or soft-failed."""
        _query(request)
        found = await self._store.explain_refusal(request.path["event"])
        return json_answer(refusal_explanation_json(found))

    async def explain_visibility(self, request: HttpRequest) -> HttpAnswer:
        """Whether a user may see an event."""
        query = _query(request, "user", "peeking", "ignored")
        ignored = frozenset(_list(query, "ignored") or ())
        viewer = Viewer(_required(query, "user"), _flag(query, "peeking"), ignored)
        found = await self._store.explain_visibility(request.path["event"], viewer)
        return json_answer(visibility_explanation_json(found))


def _query(request: HttpRequest, *known: str) -> Mapping[str, str]:
    """The parameters of a request.

    :raises BadRoomQuery: there is another one
    """
    for name in request.query:
        if name not in known:
            reason = f"known here: {', '.join(known) or 'none'}"
            raise BadRoomQuery(name=name[:40], reason=reason)
    return request.query


def _required(query: Mapping[str, str], name: str) -> str:
    if not query.get(name):
        raise BadRoomQuery(name=name, reason="it is needed")
    return query[name]


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("", "true", "false"):
        raise BadRoomQuery(name=name, reason=f"{value[:20]!r} is neither 'true' nor 'false'")
    return value != "false"


def _limit(query: Mapping[str, str]) -> int:
    value = query.get("limit", "100")
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise BadRoomQuery(name="limit", reason=f"{value[:20]!r} is no number")
    return int(value)


def _list(query: Mapping[str, str], name: str) -> list[str] | None:
    """Values with commas between them; None without the parameter."""
    return query[name].split(",") if name in query else None


def _keys(query: Mapping[str, str]) -> list[StateKey] | None:
    """The key of ``type`` and ``state_key``; None without them."""
    if "type" in query:
        return [(query["type"], query.get("state_key", ""))]
    if "state_key" in query:
        raise BadRoomQuery(name="state_key", reason="it needs 'type'; for a whole type use 'types'")
    return None
