"""The listener for Matrix clients of a process, and the clients by which it reaches the writers of rooms."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from synrepl.adapters.client_api.policy import MatrixPolicy
from synrepl.adapters.client_api.rate_limits import RateLimit, RateLimiter
from synrepl.adapters.http.client import HttpClient
from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.messages import HttpRequest
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.daemon.assemble.client_data import ClientDataServices
from synrepl.daemon.assemble.clients import ClientReading
from synrepl.daemon.assemble.inbound import InboundServices
from synrepl.daemon.assemble.joining import JoiningServices
from synrepl.daemon.assemble.rooms import RoomServices
from synrepl.daemon.client_api.absent import absent_routes
from synrepl.daemon.client_api.check import writer_urls
from synrepl.daemon.client_api.checkers import make_checker
from synrepl.daemon.client_api.client_data import ClientDataEndpoints, client_data_routes
from synrepl.daemon.client_api.endpoints import ClientRateLimiters, Endpoints
from synrepl.daemon.client_api.errors import CLIENT_API_ERRORS
from synrepl.daemon.client_api.position_wait import PositionWait
from synrepl.daemon.client_api.reading import RoomReading, reading_routes
from synrepl.daemon.client_api.rooms import directory_routes, room_routes_of_clients
from synrepl.daemon.client_api.sending import sending_routes
from synrepl.daemon.client_api.session import session_routes
from synrepl.daemon.client_api.sliding import sliding_routes
from synrepl.daemon.client_api.syncing import sync_routes
from synrepl.daemon.config.client_api import ClientApiConfig, RateLimitConfig
from synrepl.daemon.config.config import Config
from synrepl.daemon.http.actions import HttpForwarder
from synrepl.daemon.http.listener import http_status, listen
from synrepl.services.forwarding import ForwardsToWriter, WriterActions
from synrepl.services.rooms.sending.memberships import ChangesMemberships, OwnMemberships

#: Persistent connections to each process that requests are forwarded to.
FORWARDING_CONNECTIONS = 16


class ClientApiListener:
    """The listener for Matrix clients.

    :param reading: has the number of syncs that wait for news, and of plain reads
    :ivar server: has the counters of its connections and requests
    """

    def __init__(
        self, server: HttpServer, limiters: ClientRateLimiters, reading: ClientReading, port: Any
    ) -> None:
        self.server = server
        self._reading = reading
        self._limiters = limiters
        self._port = port

    @property
    def port(self) -> int:
        """The port number."""
        return int(self._port.getHost().port)

    def status(self) -> dict[str, Any]:
        """Counts of connections, requests, waiting syncs and plain reads, and of requests refused by a rate limit."""
        limiters, plain = self._limiters, self._reading.timelines.plain
        answered: Counter[str] = Counter()
        for (_, status), count in self.server.responses.items():
            answered[str(status)] += count
        return {
            "port": self.port,
            **http_status(self.server),
            "syncs_waiting": len(self._reading.waits),
            "answered": dict(answered),
            "rate_limited": {
                "logins": limiters.logins.refused,
                "requests": limiters.requests.refused,
                "writes": limiters.writes.refused,
            },
            "plain_reads": {} if plain is None else plain.counts,
        }

    async def close(self) -> None:
        """Stop listening, and close connections once their requests are answered."""
        await self._port.stopListening()
        self.server.close_connections()


def open_client_api(
    reactor: Any,
    scheduler: TwistedScheduler,
    config: Config,
    connections: ConnectionLimits,
    rooms: RoomServices | None,
    client_data: ClientDataServices | None,
    reading: ClientReading | None,
    inbound: InboundServices | None,
    joining: JoiningServices | None,
    stops: AsyncExitStack,
) -> ClientApiListener | None:
    """Open the listener for Matrix clients; None if it is not configured.

    :param connections: limits on connections
    :param stops: gets a callback that closes it
    :raises PortInUse: the port is taken, or the address is not one of this machine
    :raises ConfigError: the users or the checker cannot be used
    """
    section = None if config.rooms is None else config.rooms.clients
    if section is None or rooms is None or rooms.sending is None:
        return None
    if client_data is None or reading is None:
        return None
    checker = make_checker(scheduler, config, section)
    limiters = _limiters(scheduler, section)
    endpoints = Endpoints(
        checker,
        limiters,
        PositionWait(reading.applied, reading.covered),
        forwarded_address if section.x_forwarded else remote_address,
    )
    memberships: ChangesMemberships = OwnMemberships(rooms.sending.changes, rooms.sending.aliases)
    if joining is not None:
        memberships = joining.memberships
    routes = [
        *session_routes(
            endpoints,
            checker,
            rooms.sending.changes.default_version,
            reading.data.devices.forget,
        ),
        *sending_routes(endpoints, rooms.sending.sender, reading.data.presence.acts),
        *room_routes_of_clients(endpoints, rooms.sending, memberships, scheduler),
        *directory_routes(endpoints, rooms.sending, memberships),
        *absent_routes(endpoints),
        *reading_routes(
            endpoints,
            RoomReading(
                reading.timelines,
                reading.data,
                reading.applied,
                reading.covered,
                reading.full_states,
                config.server_name,
                None if inbound is None else inbound.backfiller,
            ),
        ),
        *client_data_routes(
            endpoints, ClientDataEndpoints(scheduler, client_data, reading.data.presence)
        ),
        *sync_routes(endpoints, reading.sync, reading.filters, config.server_name),
        *sliding_routes(endpoints, reading.sliding),
    ]
    limits = HttpLimits(
        max_body=section.max_body, max_waiting=section.max_waiting, connections=connections
    )
    server = HttpServer(scheduler, routes, MatrixPolicy(CLIENT_API_ERRORS), limits, sliced=True)
    port = listen(reactor, "rooms.client_api", section.port, server, section.bind_address)
    listener = ClientApiListener(server, limiters, reading, port)
    stops.push_async_callback(listener.close)
    return listener


def make_forwarder(
    reactor: Any, config: Config, actions: WriterActions, stops: AsyncExitStack
) -> ForwardsToWriter:
    """Reaches the processes that persist rooms.

    :param stops: gets callbacks that close its connections
    """
    clients: dict[str, HttpClient] = {}
    for writer, url in writer_urls(config).items():
        clients[writer] = HttpClient(
            reactor, url, _secret(config, writer), connections=FORWARDING_CONNECTIONS
        )
        stops.push_async_callback(clients[writer].close)
    return HttpForwarder(clients, actions)


def _secret(config: Config, writer: str) -> str | None:
    """The secret for requests to a process: the shared one, else that of the own listener."""
    assert config.rooms is not None
    shared = config.rooms.writer_secret
    if shared is None and writer == "master":
        shared = getattr(getattr(config, "master", None), "secret", None)
    if shared is None and config.http is not None:
        shared = config.http.secret
    return None if shared is None else shared.reveal()


def _limiters(scheduler: TwistedScheduler, section: ClientApiConfig) -> ClientRateLimiters:
    def limiter(limit: RateLimitConfig) -> RateLimiter:
        return RateLimiter(scheduler, RateLimit(limit.per_second, limit.burst))

    limits = section.rate_limits
    return ClientRateLimiters(
        limiter(limits.logins), limiter(limits.requests), limiter(limits.writes)
    )


def remote_address(request: HttpRequest) -> str:
    """The address of a connection."""
    return request.remote_address


def forwarded_address(request: HttpRequest) -> str:
    """The address that the proxy in front has seen: the last one, since a client can send any before it."""
    values = request.headers.getRawHeaders("X-Forwarded-For", [])
    last = values[-1].rpartition(",")[2].strip() if values else ""
    return last[:100] or request.remote_address
