"""The HTTP listener of a process, which is open before the process has started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from twisted.internet.error import CannotListenError

from synrepl.adapters.federation.certificates import ServedCertificate
from synrepl.adapters.federation.tls_factory import TlsListenerFactory
from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.policy import AdminPolicy
from synrepl.adapters.http.routes import Route
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.tcp.connection_table import ConnectionLimits, ConnectionTable
from synrepl.adapters.tcp.listening_port import ListeningPort
from synrepl.adapters.tcp.master import MasterFactory
from synrepl.core.errors import ConfigError, Unavailable
from synrepl.daemon.config.config import Config, HttpConfig


class PortInUse(ConfigError):
    """{what}: port {port} on {address} cannot be listened on: {reason}; choose another port, or stop the program that has it"""


class StillStarting(Unavailable):
    """the process is starting: {reason}"""


def listen(
    reactor: Any,
    what: str,
    port: int,
    factory: HttpServer | MasterFactory,
    address: str,
    certificate: ServedCertificate | None = None,
) -> Any:
    """Listen on a TCP port.

    :param what: the key in the configuration
    :param certificate: for TLS; None for plain text
    :raises PortInUse: the port is taken, or the address is not one of this machine
    """
    places = factory.connections.limits.of_address
    served: Any = factory
    if certificate is not None:
        served = TlsListenerFactory(reactor, certificate, factory)
    listening = ListeningPort(port, served, address, reactor, places)
    try:
        listening.startListening()
    except CannotListenError as error:
        raise PortInUse(what=what, port=port, address=address, reason=error.socketError) from None
    return listening


class HttpListener:
    """The HTTP listener of a process, open from before its start to after its stop.

    :param connections: limits on connections
    :ivar waiting: why the process has not started yet
    """

    def __init__(
        self, reactor: Any, clock: Any, config: HttpConfig, connections: ConnectionLimits
    ) -> None:
        self.waiting = "just begun"
        self.server = HttpServer(
            clock,
            self._until_started(),
            AdminPolicy(
                None if config.secret is None else config.secret.reveal(),
                (*config.allowed_hosts, config.bind_address),
            ),
            HttpLimits(max_body=config.max_body, connections=connections),
            sliced=True,
        )
        self._port = listen(reactor, "http", config.port, self.server, config.bind_address)

    @property
    def port(self) -> int:
        """The port number."""
        return int(self._port.getHost().port)

    def wait(self, reason: str) -> None:
        """Set the reason with which requests are refused until the process has started."""
        self.waiting = reason

    def status(self) -> dict[str, int]:
        """Counts of connections and requests."""
        return http_status(self.server)

    def started(self, routes: Sequence[Route]) -> None:
        """Answer requests by these routes from now on: the process has started."""
        self.server.serve(routes)

    async def close(self) -> None:
        """Stop listening, and close connections once their requests are answered."""
        await self._port.stopListening()
        self.server.close_connections()

    def _until_started(self) -> list[Route]:
        async def alive(request: HttpRequest) -> HttpAnswer:
            return json_answer({"alive": True})

        async def not_ready(request: HttpRequest) -> HttpAnswer:
            return json_answer({"ready": False, "reasons": [self.waiting], "warnings": []}, 503)

        async def refuse(request: HttpRequest) -> HttpAnswer:
            raise StillStarting(reason=self.waiting)

        updates = "/_synapse/replication/get_repl_stream_updates/<stream>"
        return [
            Route("GET", "/health", alive, public=True, immediate=True),
            Route("GET", "/ready", not_ready, immediate=True),
            Route("POST", "/streams/<stream>/facts", refuse, takes_body=True),
            Route("POST", "/caches/audit", refuse, takes_body=True),
            Route("POST", "/rooms/events", refuse, takes_body=True),
            *(
                Route("GET", path, refuse)
                for path in (
                    "/",
                    "/status",
                    "/metrics",
                    "/caches",
                    "/rooms",
                    "/streams/<stream>/wait",
                    updates,
                    f"{updates}/<request>",
                )
            ),
        ]


def open_http(
    reactor: Any,
    clock: Any,
    config: HttpConfig,
    connections: ConnectionLimits,
    stops: AsyncExitStack,
) -> HttpListener:
    """Open an HTTP listener.

    :param connections: limits on connections
    :param stops: gets a callback that closes it
    :raises PortInUse: the port is taken, or the address is not one of this machine
    """
    http = HttpListener(reactor, clock, config, connections)
    stops.push_async_callback(http.close)
    return http


def open_configured_http(
    reactor: Any,
    clock: Any,
    config: Config,
    connections: ConnectionLimits,
    stops: AsyncExitStack,
) -> HttpListener | None:
    """Open the HTTP listener if it is configured; see :func:`open_http`."""
    if config.http is None:
        return None
    return open_http(reactor, clock, config.http, connections, stops)


def waiting_reporter(http: HttpListener | None) -> Callable[[str], object]:
    """A function that reports on HTTP why the process waits."""
    return (lambda reason: None) if http is None else http.wait


def connections_status(table: ConnectionTable[Any]) -> dict[str, int]:
    """Connection counts of one listener."""
    return {
        "connections": len(table),
        "max_connections": table.limits.total,
        "displaced": table.displaced,
        "refused": table.refused,
    }


def http_status(server: HttpServer) -> dict[str, int]:
    """Connection counts of the HTTP listener, and its requests by state."""
    admission = server.admission
    return {
        **connections_status(server.connections),
        "active": admission.active,
        "queued": admission.queued,
        "waiting": admission.waiting,
    }
