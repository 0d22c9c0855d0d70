"""Endpoints for servers that are in a room: events, states, history.

Source: https://spec.matrix.org/v1.16/server-server-api/#retrieving-events
"""

from __future__ import annotations

from typing import Any

import msgspec

from synrepl.adapters.federation.errors import BadFederationBody
from synrepl.adapters.federation.signed_endpoints import FederationEndpoints, SignedRequest
from synrepl.adapters.http.messages import HttpAnswer, StreamedAnswer, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core import jsons
from synrepl.core.clock import Clock
from synrepl.core.errors import InputError
from synrepl.services.federation.resident.reading import ResidentReading
from synrepl.storage.rooms.visibility.traversal import MAX_BACKFILL, MAX_MISSING_EVENTS

_V1 = "/_matrix/federation/v1"

#: Events in an answer to ``get_missing_events`` where the request does not say.
DEFAULT_MISSING = 10


class BadUrlParameter(InputError):
    """the parameter {name!r} of this URL is not acceptable: {reason}"""


class _MissingEvents(msgspec.Struct):
    """The body of ``get_missing_events``."""

    earliest_events: list[str]
    latest_events: list[str]
    limit: int = DEFAULT_MISSING
    min_depth: int = 0


class RoomEndpoints:
    """Answers servers that are in a room."""

    def __init__(self, clock: Clock, reading: ResidentReading, server_name: str) -> None:
        self._clock = clock
        self._reading = reading
        self._server_name = server_name

    def routes(self, endpoints: FederationEndpoints) -> list[Route]:
        """The routes."""
        return [
            endpoints.get(f"{_V1}/event/<event>", self.event),
            endpoints.get(f"{_V1}/event_auth/<room>/<event>", self.event_auth),
            endpoints.get(f"{_V1}/state/<room>", self.state),
            endpoints.get(f"{_V1}/state_ids/<room>", self.state_ids),
            endpoints.get(f"{_V1}/backfill/<room>", self.backfill, repeatable=["v"]),
            endpoints.post(f"{_V1}/get_missing_events/<room>", self.missing_events),
            endpoints.get(f"{_V1}/timestamp_to_event/<room>", self.event_at),
        ]

    async def event(self, request: SignedRequest) -> HttpAnswer:
        """One event."""
        return self._transaction([await self._reading.event(request.origin, request.path["event"])])

    async def event_auth(self, request: SignedRequest) -> HttpAnswer:
        """The auth chain of an event."""
        parts = await self._reading.event_auth(
            request.origin, request.path["room"], request.path["event"]
        )
        return StreamedAnswer(200, b"", chunks=parts)

    async def state(self, request: SignedRequest) -> HttpAnswer:
        """The state before an event."""
        parts = await self._reading.state(
            request.origin, request.path["room"], _text(request, "event_id")
        )
        return StreamedAnswer(200, b"", chunks=parts)

    async def state_ids(self, request: SignedRequest) -> HttpAnswer:
        """The same with event IDs."""
        parts = await self._reading.state_ids(
            request.origin, request.path["room"], _text(request, "event_id")
        )
        return StreamedAnswer(200, b"", chunks=parts)

    async def backfill(self, request: SignedRequest) -> HttpAnswer:
        """Events at and before some."""
        limit = min(_number(request, "limit", MAX_BACKFILL), MAX_BACKFILL)
        found = await self._reading.backfill(
            request.origin, request.path["room"], request.values("v"), limit
        )
        return self._transaction(list(found))

    async def missing_events(self, request: SignedRequest) -> HttpAnswer:
        """Events between some."""
        try:
            asked = msgspec.convert(request.json(), _MissingEvents)
        except msgspec.ValidationError as error:
            raise BadFederationBody(reason=error) from None
        found = await self._reading.missing_events(
            request.origin,
            request.path["room"],
            asked.earliest_events,
            asked.latest_events,
            min(asked.limit, MAX_MISSING_EVENTS),
            asked.min_depth,
        )
        return HttpAnswer(200, b'{"events":[%b]}' % b",".join(found))

    async def event_at(self, request: SignedRequest) -> HttpAnswer:
        """The event closest to a time."""
        direction = request.query.get("dir", "f")
        if direction not in ("f", "b"):
            raise BadUrlParameter(name="dir", reason="give 'f' or 'b'")
        found = await self._reading.event_at(
            request.origin,
            request.path["room"],
            _number(request, "ts", None),
            forwards=direction == "f",
        )
        return json_answer(found._asdict())

    def _transaction(self, events: list[bytes]) -> HttpAnswer:
        head: dict[str, Any] = {
            "origin": self._server_name,
            "origin_server_ts": int(self._clock.seconds() * 1000),
        }
        body = b'%b,"pdus":[%b]}' % (jsons.encode(head)[:-1], b",".join(events))
        return HttpAnswer(200, body)


def _text(request: SignedRequest, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise BadUrlParameter(name=name, reason="it is missing")
    return value


def _number(request: SignedRequest, name: str, default: int | None) -> int:
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadUrlParameter(name=name, reason="give a whole number")
    return int(text)
