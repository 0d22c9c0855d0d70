"""What a simulated server sends to others: its events, and requests for what it lacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.federation.requests import FederationRequest
from synrepl.rooms import Event, RoomVersion, check_on_receipt

#: Events of a transaction at most.
MAX_PDUS = 50

_PREFIX = "/_matrix/federation"


class AnsweredWithError(Unavailable):
    """{destination} answered {path} with {status}: {body}"""


class OutgoingEvents:
    """Sends the events of one server.

    :ivar queues: by destination, the events that it has not taken yet
    :ivar is_eager: whether each event is sent as soon as it is there
    """

    def __init__(self, name: str, federation: InMemoryFederation) -> None:
        self.queues: dict[str, deque[bytes]] = {}
        self.is_eager = False
        self._name = name
        self._federation = federation
        self._transport = federation.transport(name)
        self._transactions = 0

    def add(self, event: Event, servers: Iterable[str]) -> None:
        """Have an event sent to the servers of a room."""
        others = sorted(set(servers) & set(self._federation.names) - {self._name})
        for each in others:
            self.queues.setdefault(each, deque()).append(event.raw)
            if self.is_eager:
                self._federation.scheduler.spawn(f"send to {each}", self._try_to_send(each))

    async def _try_to_send(self, destination: str) -> None:
        try:
            await self.send(destination)
        except SynreplError:
            return  # it is sent with the next one

    async def send_all(self) -> None:
        """Send what waits, to each destination that can be reached."""
        for each in sorted(self.queues):
            await self._try_to_send(each)

    async def send(self, destination: str) -> None:
        """Send what waits for a destination.

        :raises SynreplError: it cannot be reached, or did not take it
        """
        queue = self.queues.get(destination, deque())
        while queue:
            pdus = [queue.popleft() for _ in range(min(MAX_PDUS, len(queue)))]
            try:
                await self.transact(destination, pdus)
            except SynreplError:
                queue.extendleft(reversed(pdus))
                raise

    async def transact(
        self, destination: str, pdus: Sequence[bytes], edus: Sequence[Mapping[str, Any]] = ()
    ) -> Mapping[str, Any]:
        """Send a transaction; returns the outcome by event ID."""
        self._transactions += 1
        now = int(self._federation.scheduler.seconds() * 1000)
        content = {
            "origin": self._name,
            "origin_server_ts": now,
            "pdus": [orjson.Fragment(each) for each in pdus],
            "edus": list(edus),
        }
        path = f"{_PREFIX}/v1/send/{now}-{self._transactions}"
        answer = await self.ask("PUT", destination, path, content=orjson.dumps(content))
        pdu_results: Mapping[str, Any] = answer["pdus"]
        return pdu_results

    async def ask(
        self,
        method: str,
        destination: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        content: bytes | None = None,
    ) -> dict[str, Any]:
        """Ask another server.

        :raises AnsweredWithError: :raises DestinationAway:
        """
        request = FederationRequest(method, destination, path, query, content)
        answer = await self._transport.send(request)
        with answer.body.open() as body:
            data = body.read()
        if answer.status != 200:
            raise AnsweredWithError(
                destination=destination, path=path, status=answer.status, body=data[:200]
            )
        found = orjson.loads(data)
        assert isinstance(found, dict)
        return found

    async def fill_gap(self, room: HostedRoom, event: Event, origin: str) -> None:
        """Fetch what an event waits for: events between, and if that is not enough, the state before it."""
        content = {
            "earliest_events": sorted(room.room.forward_extremities),
            "latest_events": [event.event_id],
            "limit": 20,
        }
        room_path = quote(room.room_id, safe="")
        try:
            path = f"{_PREFIX}/v1/get_missing_events/{room_path}"
            found = await self.ask("POST", origin, path, content=orjson.dumps(content))
            for each in self.checked(found["events"], room.version):
                room.room.receive(each)
            if event.event_id in room:
                return
            path = f"{_PREFIX}/v1/state/{room_path}"
            found = await self.ask("GET", origin, path, [("event_id", event.event_id)])
            state = list(self.checked(found["pdus"], room.version))
            room.add_outliers([*self.checked(found["auth_chain"], room.version), *state])
            room.add_with_state(event, state)
        except SynreplError:
            return

    def checked(self, pdus: Iterable[object], version: RoomVersion) -> Iterator[Event]:
        """Those of some events from another server that pass checks 1 to 3."""
        for each in pdus:
            checked = check_on_receipt(orjson.dumps(each), version, self._federation.keys)
            if checked.event is not None:
                yield checked.event
