"""A listener for other servers on loopback, which servers of rooms in memory ask over HTTP with signed requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from twisted.internet.defer import Deferred
from twisted.web.client import Agent, HTTPConnectionPool, readBody
from twisted.web.http_headers import Headers

from synrepl.adapters.client_api.rate_limits import RateLimit, RateLimiter
from synrepl.adapters.federation.policy import FederationPolicy
from synrepl.adapters.federation.signed_endpoints import FederationEndpoints, OriginLimits
from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.server import HttpServer
from synrepl.core.errors import SynreplError
from synrepl.daemon.federation.directory import DirectoryEndpoints
from synrepl.daemon.federation.errors import FEDERATION_ERRORS
from synrepl.daemon.federation.memberships import ServedMemberships
from synrepl.daemon.federation.rooms import RoomEndpoints
from synrepl.daemon.federation.transactions import transaction_routes
from synrepl.federation.errors import DestinationAway
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest
from synrepl.federation.x_matrix import sign_request
from synrepl.rooms import ServerKey, canonical_json
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.resident.arrivals import ARRIVAL_ERRORS, MembershipArrivals
from synrepl.services.federation.resident.invites import InviteReceiver, RemoteMemberships
from synrepl.services.federation.resident.reading import ResidentReading
from synrepl.services.federation.resident.room_access import RoomAccess
from synrepl.services.federation.resident.state_streams import StateStreams
from synrepl.services.federation.resident.templates import MembershipTemplates
from synrepl.services.forwarding import WriterActions
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.forwarded_errors import FORWARDED_ERRORS
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.services.rooms.sending.placements import PlacementCache
from synrepl.services.rooms.sending.room_changes import RoomChanges
from synrepl.services.rooms.store import RoomStore
from tests.adapters.raw_http_client import ListeningServer, reactor
from tests.services.federation.inbound_case import (
    ALICE,
    HERE,
    REMOTE,
    InboundCase,
    InboundProcess,
    NoThreads,
)
from tests.storage.rooms.store_case import PersistingProcess

FEDERATION = "/_matrix/federation"


class ServerAnswer(NamedTuple):
    """An answer to a request."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class SignerKeys:
    """Knows the keys of all servers, for requests."""

    def __init__(self, keys: Mapping[str, Mapping[str, ServerKey]]) -> None:
        self._keys = keys

    def remembered(self, server: str, key_id: str) -> ServerKey | None:
        return self._keys[server].get(key_id)

    async def for_request(self, server: str, key_id: str) -> ServerKey | None:
        return None


class ResidentProcess(InboundProcess):
    """A process with everything that answers other servers, and what its own users do."""

    def __init__(self, process: PersistingProcess, *args: Any, **more: Any) -> None:
        super().__init__(process, *args, **more)
        inner, federation = process.process, args[0]
        writers: Sequence[str] = args[1]
        persists = more.get("persists", True)
        scheduler, database = inner.scheduler, inner.database
        self.actions = WriterActions((*FORWARDED_ERRORS, *ARRIVAL_ERRORS))
        key = federation.keys.signing_key(HERE)
        room_writers = RoomWriters(database, writers)
        persister = process.persister if persists else None
        access, self.streams = RoomAccess(database, self.admission), StateStreams(database)
        self.templates = MembershipTemplates(scheduler, database, access, HERE, key)
        self.arrivals = MembershipArrivals(
            database, access, self.verifier, persister, self, inner.name, HERE, key
        )
        self.memberships = RemoteMemberships(
            scheduler, room_writers, process.writer, self, inner.name
        )
        self.invites = InviteReceiver(
            database,
            self.admission,
            self.verifier,
            self.handover,
            self.memberships,
            HERE,
            key,
        )
        store = RoomStore(database)
        self.reading = ResidentReading(database, access, store, self.streams, HERE)
        self.sender = EventSender(
            scheduler,
            database,
            PlacementCache(scheduler, room_writers),
            persister,
            inner.name,
            HERE,
            key,
            self,
        )
        self.aliases = RoomAliases(database, self.sender)
        self.changes = RoomChanges(database, self.sender, self.aliases)
        for each in (self.sweeper, self.arrivals, self.memberships, self.sender):
            each.add_actions(self.actions)


class HttpSide:
    """This server, as servers in memory reach it: over HTTP."""

    def __init__(self, case: FederationListenerCase) -> None:
        self._case = case

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        query = "?" + urlencode(list(request.query)) if request.query else ""
        content = None if request.content is None else json.loads(request.content)
        try:
            answer = await self._case.ask(
                request.method, request.path + query, content, origin=origin
            )
        except SynreplError as error:
            raise DestinationAway(
                destination=HERE, subject=request.subject, reason=str(error)
            ) from error
        return FederationAnswer(answer.status, BytesBody(answer.body))


class FederationListenerCase(InboundCase):
    """A process of this server with a listener."""

    limits = HttpLimits(max_body=12 * 2**20)

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.here: ResidentProcess = self.resident(self.one)
        self.listening = self.listen(self.here)
        self.pool = HTTPConnectionPool(reactor)
        self.agent = Agent(reactor, pool=self.pool)
        self.federation.register(HERE, HttpSide(self))

    async def tearDown(self) -> None:  # type: ignore[override]
        await self.pool.closeCachedConnections()
        await self.listening.stop()

    def resident(
        self, process: PersistingProcess, writers: Sequence[str] = ("one",), **more: Any
    ) -> ResidentProcess:
        """What takes in events and answers, in a process."""
        return ResidentProcess(process, self.federation, writers, **more)

    def listen(self, process: ResidentProcess) -> ListeningServer:
        """Open a listener of a process."""
        scheduler = process.process.process.scheduler

        async def heard_of(server: str) -> None:
            pass

        limit = RateLimit(10_000.0, 10_000)
        endpoints = FederationEndpoints(
            scheduler,
            HERE,
            SignerKeys(self.federation.keys),
            OriginLimits(RateLimiter(scheduler, limit), RateLimiter(scheduler, limit), 100),
            NoThreads(),
            heard_of,
            lambda request: request.remote_address,
        )
        memberships = ServedMemberships(
            process.templates, process.arrivals, process.invites, process.streams, HERE
        )
        routes = [
            *transaction_routes(endpoints, process.receiver),
            *memberships.routes(endpoints),
            *RoomEndpoints(scheduler, process.reading, HERE).routes(endpoints),
            *DirectoryEndpoints(process.aliases.room_with_servers, HERE).routes(endpoints),
        ]
        policy = FederationPolicy(HERE, FEDERATION_ERRORS)
        return ListeningServer(HttpServer(reactor, routes, policy, self.limits))

    async def ask(
        self,
        method: str,
        uri: str,
        content: object = None,
        origin: str = REMOTE,
        *,
        to: ListeningServer | None = None,
    ) -> ServerAnswer:
        """Send a signed request.

        :param content: JSON, or its canonical form as bytes
        """
        body = content if isinstance(content, bytes) or content is None else canonical_json(content)
        key = self.federation.keys.signing_key(origin)
        header = sign_request(key, method, uri, origin, HERE, body)
        response = await self.agent.request(
            method.encode(),
            f"{(to or self.listening).url}{uri}".encode(),
            Headers({"Authorization": [header], "Content-Type": ["application/json"]}),
            None if body is None else _Body(body),  # type: ignore[arg-type]
        )
        return ServerAnswer(response.code, await readBody(response))

    async def get(self, path: str, origin: str = REMOTE, **query: str) -> ServerAnswer:
        """Ask by GET; the segments of the path are encoded."""
        segments = "/".join(quote(each, safe="") for each in path.strip("/").split("/"))
        text = "?" + urlencode(query) if query else ""
        return await self.ask("GET", f"{FEDERATION}/{segments}{text}", origin=origin)

    def assert_refused(self, answer: ServerAnswer, status: int, errcode: str) -> None:
        """The answer is this error."""
        self.assertEqual((answer.status, answer.json["errcode"]), (status, errcode), answer.body)

    # -- rooms of this server -----------------------------------------------------------------

    async def create(self, **chosen: Any) -> str:
        """A room of Alice's; returns its ID."""
        new = NewRoom(**{"preset": "public_chat", "room_version": "10", **chosen})
        return (await self.here.changes.create(ClientIdentity(ALICE, "A"), new)).room_id

    async def send(
        self, room_id: str, kind: str, content: dict[str, Any], state_key: str | None = None
    ) -> str:
        """Have Alice send an event; returns its ID."""
        sent = await self.here.sender.send(
            ClientIdentity(ALICE, "A"), room_id, kind, content, state_key=state_key
        )
        return sent.event_id

    async def say_here(self, room_id: str, body: str = "hello") -> str:
        """Have Alice say something; returns the event's ID."""
        return await self.send(room_id, "m.room.message", {"msgtype": "m.text", "body": body})


class _Body:
    """A body for an agent."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)

    def startProducing(self, consumer: Any) -> Deferred[None]:
        consumer.write(self._body)
        done: Deferred[None] = Deferred()
        done.callback(None)
        return done

    def pauseProducing(self) -> None:
        pass

    def stopProducing(self) -> None:
        pass
