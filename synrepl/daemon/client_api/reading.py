"""Endpoints that read rooms: history, states and members.

Source: https://spec.matrix.org/v1.16/client-server-api/#getting-events-for-a-room and the sections after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import orjson

from synrepl.adapters.http.messages import JSON, HttpAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core import jsons
from synrepl.daemon.client_api.endpoints import BadParameter, ClientRequest, Endpoints
from synrepl.positions.vector import PositionVector
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.full_state_wait import FullStateWait
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.sliding.sliding_pos import SlidingPos
from synrepl.services.rooms.timelines.client_filter import (
    RoomEventFilter,
    parse_room_event_filter,
)
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import ClientEvent, TimelineReader

T = TypeVar("T")

#: Numbers of events on a page: by default, and at most.
DEFAULT_PAGE, MAX_PAGE = 10, 1_000

#: How often other servers are asked for the history of one page.
MAX_BACKFILLS = 2

#: A position in a room's history, as a parameter has it.
_Position = RoomToken | PositionVector | None


class ReadingPositions(Protocol):
    """The positions of this process."""

    def current(self) -> SyncToken: ...


class CoversTokens(Protocol):
    """Waits until this process has applied what a client has seen."""

    async def until_covered(self, token: SyncToken) -> None: ...


class KnowsReaders(Protocol):
    """Knows whom users ignore."""

    async def reader_of(self, identity: ClientIdentity) -> TimelineReader:
        """Who reads, and whom the user ignores."""


class FetchesHistory(Protocol):
    """Fetches history that other servers have."""

    async def fetch(self, room_id: str, missing: Sequence[str]) -> bool:
        """Have events of a room fetched; returns whether any has come in time."""


class RoomReading:
    """Answers the endpoints.

    :param waits: for the states of partial rooms
    :param server: name of this server
    :param history: None if this server asks no others
    """

    def __init__(
        self,
        timelines: Timelines,
        readers: KnowsReaders,
        positions: ReadingPositions,
        covers: CoversTokens,
        waits: FullStateWait,
        server: str,
        history: FetchesHistory | None,
    ) -> None:
        self._waits = waits
        self._timelines = timelines
        self._readers = readers
        self._positions = positions
        self._covers = covers
        self._server = server
        self._history = history

    async def messages(self, request: ClientRequest) -> HttpAnswer:
        """A page of a room's history."""
        direction = request.query.get("dir", "b")
        if direction not in ("b", "f"):
            raise BadParameter(name="dir", reason="give 'b' or 'f'")
        start = await self._position(request, "from")
        end = await self._position(request, "to")
        reader, room_id = await self._reader(request), request.path["room"]
        limit, wanted = request.number("limit", DEFAULT_PAGE, 1, MAX_PAGE), _filter(request)
        asked = 0
        while True:
            page = await self._timelines.messages(
                reader,
                room_id,
                self._upto(),
                start,
                end,
                backwards=direction == "b",
                limit=limit,
                wanted=wanted,
            )
            if not page.gaps or self._history is None or asked == MAX_BACKFILLS:
                break
            asked += 1
            if not await self._history.fetch(room_id, page.gaps):
                break
        answer: dict[str, Any] = {
            "chunk": _fragments(page.events),
            "start": request.query.get("from") or str(page.start),
        }
        following = page.resumes if page.end is None and self._history is not None else page.end
        if following is not None:
            answer["end"] = str(following)
        if page.state:
            answer["state"] = _fragments(page.state)
        return _json(answer)

    async def context(self, request: ClientRequest) -> HttpAnswer:
        """An event and those around it."""
        found = await self._timelines.context(
            await self._reader(request),
            request.path["room"],
            request.path["event"],
            self._upto(),
            request.number("limit", DEFAULT_PAGE, 0, MAX_PAGE),
            _filter(request),
        )
        return _json(
            {
                "event": orjson.Fragment(found.event.json),
                "events_before": _fragments(found.before),
                "events_after": _fragments(found.after),
                "state": _fragments(found.state),
                "start": str(found.start),
                "end": str(found.end),
            }
        )

    async def event(self, request: ClientRequest) -> HttpAnswer:
        """One event."""
        found = await self._timelines.event(
            await self._reader(request),
            request.path["room"],
            request.path["event"],
            self._upto(),
        )
        return HttpAnswer(200, found.json, JSON)

    async def state(self, request: ClientRequest) -> HttpAnswer:
        """The current state."""
        found = await self._known(request, self._timelines.state)
        return HttpAnswer(200, orjson.dumps(_fragments(found)), JSON)

    async def state_entry(self, request: ClientRequest) -> HttpAnswer:
        """The content of one entry of the current state, or with ``format=event`` its event."""
        wanted = request.query.get("format", "content")
        if wanted not in ("content", "event"):
            raise BadParameter(name="format", reason="give 'content' or 'event'")
        kind, key = request.path["type"], request.path.get("state_key", "")

        async def read(reader: TimelineReader, room: str, upto: PositionVector) -> ClientEvent:
            return await self._timelines.state_entry(reader, room, kind, key, upto)

        found = await self._known(request, read)
        if wanted == "event":
            return HttpAnswer(200, found.json, JSON)
        return _json({**orjson.loads(found.json)["content"]})

    async def members(self, request: ClientRequest) -> HttpAnswer:
        """The memberships of a room."""
        at = await self._position(request, "at")
        with_, without = request.query.get("membership"), request.query.get("not_membership")

        async def read(
            reader: TimelineReader, room: str, upto: PositionVector
        ) -> Sequence[ClientEvent]:
            return await self._timelines.members(reader, room, upto, at, with_, without)

        found = await self._known(request, read)
        return _json({"chunk": _fragments(found)})

    async def joined_members(self, request: ClientRequest) -> HttpAnswer:
        """The users in a room, with their names."""
        found = await self._known(request, self._timelines.joined_members)
        joined: dict[str, Mapping[str, str | None]] = {
            each.user_id: {"display_name": each.display_name, "avatar_url": each.avatar_url}
            for each in found
        }
        return _json({"joined": joined})

    async def joined_rooms(self, request: ClientRequest) -> HttpAnswer:
        """The rooms of the user."""
        found = await self._timelines.joined_rooms(request.user_id, self._upto())
        return _json({"joined_rooms": list(found)})

    async def _known(
        self,
        request: ClientRequest,
        read: Callable[[TimelineReader, str, PositionVector], Awaitable[T]],
    ) -> T:
        """Read something of the state of a room; of a partial one, once it is known."""
        reader, room = await self._reader(request), request.path["room"]
        return await self._waits.read(room, lambda: read(reader, room, self._upto()))

    def _upto(self) -> PositionVector:
        return self._positions.current().events

    async def _reader(self, request: ClientRequest) -> TimelineReader:
        return await self._readers.reader_of(request.identity)

    async def _position(self, request: ClientRequest, name: str) -> _Position:
        """A position in the URL: of this API's pages, or of a sync, which this process has to have reached."""
        text = request.query.get(name)
        if not text:
            return None
        if text.startswith("p"):
            token = SlidingPos.parse(text, self._server).token
        elif text.startswith("s"):
            token = SyncToken.parse(text, self._server)
        else:
            return RoomToken.parse(text)
        await self._covers.until_covered(token)
        return token.events


def reading_routes(endpoints: Endpoints, reading: RoomReading) -> list[Route]:
    """The endpoints that read rooms."""
    room = "/rooms/<room>"
    return [
        *endpoints.get(f"{room}/messages", reading.messages, waits=True),
        *endpoints.get(f"{room}/context/<event>", reading.context),
        *endpoints.get(f"{room}/event/<event>", reading.event),
        *endpoints.get(f"{room}/state", reading.state),
        *endpoints.get(f"{room}/state/<type>", reading.state_entry),
        *endpoints.get(f"{room}/state/<type>/", reading.state_entry),
        *endpoints.get(f"{room}/state/<type>/<state_key>", reading.state_entry),
        *endpoints.get(f"{room}/members", reading.members),
        *endpoints.get(f"{room}/joined_members", reading.joined_members),
        *endpoints.get("/joined_rooms", reading.joined_rooms),
    ]


def _filter(request: ClientRequest) -> RoomEventFilter | None:
    """The filter of the URL, which is JSON.

    :raises BadJson: :raises BadFilter:
    """
    text = request.query.get("filter")
    if text is None:
        return None
    return parse_room_event_filter(jsons.decode(text.encode(), "the filter"))


def _fragments(events: Sequence[ClientEvent]) -> list[orjson.Fragment]:
    return [orjson.Fragment(each.json) for each in events]


def _json(answer: Mapping[str, Any]) -> HttpAnswer:
    return json_answer(answer)
