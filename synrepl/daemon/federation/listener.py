"""The listener for other servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from synrepl import __version__
from synrepl.adapters.client_api.rate_limits import RateLimit, RateLimiter
from synrepl.adapters.federation.certificates import ServedCertificate
from synrepl.adapters.federation.policy import FederationPolicy
from synrepl.adapters.federation.signed_endpoints import FederationEndpoints, OriginLimits
from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.core.log import Logger
from synrepl.daemon.assemble.federation import FederationServices
from synrepl.daemon.assemble.inbound import InboundServices
from synrepl.daemon.assemble.partial_rooms import PartialRoomServices
from synrepl.daemon.assemble.rooms import RoomServices
from synrepl.daemon.client_api.listener import forwarded_address, remote_address
from synrepl.daemon.config.client_api import RateLimitConfig
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.federation import FederationConfig
from synrepl.daemon.federation.certificate import served_certificate
from synrepl.daemon.federation.directory import DirectoryEndpoints
from synrepl.daemon.federation.errors import FEDERATION_ERRORS
from synrepl.daemon.federation.keys import KeyEndpoints
from synrepl.daemon.federation.memberships import ServedMemberships
from synrepl.daemon.federation.rooms import RoomEndpoints
from synrepl.daemon.federation.transactions import transaction_routes
from synrepl.daemon.http.listener import http_status, listen
from synrepl.services.federation.sending.sender import FederationSender


class FederationListener:
    """The listener for other servers.

    :ivar server: has the counters of its connections and requests
    """

    def __init__(
        self,
        server: HttpServer,
        endpoints: FederationEndpoints,
        limits: OriginLimits,
        certificate: ServedCertificate | None,
        port: Any,
    ) -> None:
        self.server = server
        self._endpoints = endpoints
        self._limits = limits
        self._certificate = certificate
        self._port = port

    @property
    def port(self) -> int:
        """The port number."""
        return int(self._port.getHost().port)

    def status(self) -> dict[str, Any]:
        """Counts of connections and requests, and when the certificate expires."""
        answered: Counter[str] = Counter()
        for (_, status), count in self.server.responses.items():
            answered[str(status)] += count
        certificate = self._certificate
        return {
            "port": self.port,
            **http_status(self.server),
            "answered": dict(answered),
            "rate_limited": {
                "requests": self._limits.requests.refused,
                "failures": self._limits.failures.refused,
            },
            "unverified": self._endpoints.unverified,
            "certificate": None if certificate is None else certificate.status(),
        }

    async def close(self) -> None:
        """Stop listening, and close connections once their requests are answered."""
        await self._port.stopListening()
        self.server.close_connections()


def open_federation(
    reactor: Any,
    scheduler: TwistedScheduler,
    config: Config,
    connections: ConnectionLimits,
    services: FederationServices | None,
    inbound: InboundServices | None,
    rooms: RoomServices | None,
    log: Logger,
    stops: AsyncExitStack,
) -> FederationListener | None:
    """Open the listener for other servers; None if it is not configured.

    :param connections: limits on connections
    :param stops: gets a callback that closes it
    :raises PortInUse: the port is taken, or the address is not one of this machine
    :raises BadCertificate: the certificate cannot be used
    """
    section = None if config.rooms is None else config.rooms.federation
    if section is None or section.port is None or services is None:
        return None
    limits = OriginLimits(
        _limiter(scheduler, section.rate_limit),
        _limiter(scheduler, section.failure_limit),
        section.max_concurrent,
    )
    endpoints = FederationEndpoints(
        scheduler,
        config.server_name,
        services.keys,
        limits,
        services.ports.threads,
        services.transport.server_is_up,
        forwarded_address if section.x_forwarded else remote_address,
        None if section.server_acl is None else section.server_acl.acl,
    )
    routes = [
        *KeyEndpoints(scheduler, services.own_keys, services.keys).routes(endpoints),
        *version_routes(endpoints, section),
        *_room_routes(scheduler, config.server_name, endpoints, inbound, rooms),
    ]
    server = HttpServer(
        scheduler,
        routes,
        FederationPolicy(config.server_name, FEDERATION_ERRORS),
        HttpLimits(max_body=section.max_body, connections=connections),
        sliced=True,
    )
    certificate = served_certificate(section, scheduler, log)
    port = listen(
        reactor,
        "rooms.federation",
        section.port,
        server,
        section.bind_address,
        certificate,
    )
    listener = FederationListener(server, endpoints, limits, certificate, port)
    stops.push_async_callback(listener.close)
    return listener


async def start_federation(
    scheduler: TwistedScheduler,
    services: FederationServices | None,
    inbound: InboundServices | None,
) -> None:
    """Check the key of this process, and start what it does for federation in the background.

    :raises SigningKeyReplaced:
    """
    if services is not None:
        await services.own_keys.check()
        scheduler.spawn("watch failing servers", services.transport.watch_failing())
    if inbound is not None:
        inbound.begin(scheduler)


def start_sending(sending: FederationSender | None, stops: AsyncExitStack) -> None:
    """Start to send to other servers, if this process does.

    :param stops: gets a callback that finishes what is under way
    """
    if sending is not None:
        sending.start()
        stops.push_async_callback(sending.stop)


def _room_routes(
    scheduler: TwistedScheduler,
    server_name: str,
    endpoints: FederationEndpoints,
    inbound: InboundServices | None,
    rooms: RoomServices | None,
) -> Sequence[Route]:
    """The endpoints about rooms."""
    if inbound is None or rooms is None or rooms.sending is None:
        return []
    memberships = ServedMemberships(
        inbound.templates, inbound.arrivals, inbound.invites, inbound.streams, server_name
    )
    directory = DirectoryEndpoints(rooms.sending.aliases.room_with_servers, server_name)
    return [
        *transaction_routes(endpoints, inbound.receiver),
        *memberships.routes(endpoints),
        *RoomEndpoints(scheduler, inbound.reading, server_name).routes(endpoints),
        *directory.routes(endpoints),
    ]


def start_partial_rooms(
    scheduler: TwistedScheduler, services: PartialRoomServices | None, stops: AsyncExitStack
) -> None:
    """Start to complete partial rooms; other processes go on when this one stops.

    :param stops: gets a callback that ends it
    """
    if services is not None:
        services.begin(scheduler)
        stops.push_async_callback(services.stop)


def version_routes(endpoints: FederationEndpoints, section: FederationConfig) -> Sequence[Route]:
    """What this server is, and, if it is configured, where it is."""

    async def version(request: HttpRequest) -> HttpAnswer:
        return json_answer({"server": {"name": "synrepl", "version": __version__}})

    async def well_known(request: HttpRequest) -> HttpAnswer:
        return json_answer({"m.server": section.well_known})

    routes = [endpoints.public("GET", "/_matrix/federation/v1/version", version)]
    if section.well_known is not None:
        routes.append(endpoints.public("GET", "/.well-known/matrix/server", well_known))
    return routes


def _limiter(scheduler: TwistedScheduler, limit: RateLimitConfig) -> RateLimiter:
    return RateLimiter(scheduler, RateLimit(limit.per_second, limit.burst))
