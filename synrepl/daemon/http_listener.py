"""The HTTP listener of a process: there from the first moment, useful once it has started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.error import CannotListenError

from synrepl.adapters.connection_table import ConnectionLimits
from synrepl.adapters.http_limits import HttpLimits
from synrepl.adapters.http_messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http_routes import Route
from synrepl.adapters.http_server import HttpServer
from synrepl.adapters.listening_port import ListeningPort
from synrepl.adapters.tcp_master import MasterFactory
from synrepl.core.errors import ConfigError, Unavailable
from synrepl.daemon.config import Http
from synrepl.daemon.descriptors import shares
from synrepl.daemon.listener_status import http_status


class PortInUse(ConfigError):
    """{what}: port {port} on {address} cannot be listened on: {reason}; choose another port, or stop the program that has it"""


class StillStarting(Unavailable):
    """the process is starting: {reason}"""


def listen(
    reactor: Any, what: str, port: int, factory: HttpServer | MasterFactory, address: str
) -> Any:
    """Listen on a TCP port.

    :param what: the key of the configuration that asked for it
    :raises PortInUse: it is taken, or the address is not ours
    """
    places = factory.connections.limits.of_address
    listening = ListeningPort(port, factory, address, reactor, places)
    try:
        listening.startListening()
    except CannotListenError as error:
        raise PortInUse(what=what, port=port, address=address, reason=error.socketError) from None
    return listening


class HttpListener:
    """One listener, from before the start of a process to after its end.

    :param config: None for a process without one; then nothing here does anything
    :param connections: limits on connections, where the process has other listeners too
    :ivar waiting: why the process has not started yet
    """

    def __init__(
        self,
        reactor: Any,
        clock: Any,
        config: Http | None,
        connections: ConnectionLimits | None = None,
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._port: Any = None
        self.waiting = "just begun"
        self.server: HttpServer | None = None
        if config is not None:
            secret = None if config.secret is None else config.secret.reveal()
            most = shares(config).http if connections is None else connections
            limits = HttpLimits(max_body=config.max_body, connections=most)
            names = (*config.allowed_hosts, config.bind_address)
            self.server = HttpServer(
                clock, self._until_started(), secret, limits, names, sliced=True
            )

    def open(self) -> None:
        """Listen.

        :raises PortInUse: it is taken, or the address is not ours
        """
        if self._config is not None:
            where = self._config.bind_address
            assert self.server is not None
            self._port = listen(self._reactor, "http", self._config.port, self.server, where)

    @property
    def port(self) -> int | None:
        """The port that is listened on."""
        return None if self._port is None else int(self._port.getHost().port)

    def status(self) -> dict[str, int] | None:
        """Its connections and requests; None for a process without a listener."""
        return None if self.server is None else http_status(self.server)

    def started(self, routes: Sequence[Route]) -> None:
        """The process has started: answer by these routes."""
        if self.server is not None:
            self.server.serve(routes)

    async def close(self) -> None:
        """Stop listening, and close what is open once it is answered."""
        if self._port is not None:
            await self._port.stopListening()
        if self.server is not None:
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
            *(
                Route("GET", path, refuse)
                for path in (
                    "/",
                    "/status",
                    "/metrics",
                    "/caches",
                    "/streams/<stream>/wait",
                    updates,
                    f"{updates}/<request>",
                )
            ),
        ]
